//! Where results may go: names that no file or folder can have, and what a dry run finds out without leaving anything.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use safetensors::tensor::Dtype;
use serde_json::json;

#[test]
fn names_that_no_output_can_have_are_refused_before_the_work() {
    let folder = Folder::new();
    let (file, model) = (folder.file("in"), folder.file("model"));
    common::model(&file);
    model_folder(&model, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    fs::write(folder.file("note"), "a file").unwrap();
    let names = folder.names();
    let cases: [(&str, &str, &[&str]); 9] = [
        (&file, "x/", &["x/: is the name of a folder", "; give the name of a file"]),
        (&file, "x/.", &["x/.: is the name of a folder", "; give the name of a file"]),
        (&file, "note/x", &["cannot be in", "note, which is a file", "; give a name in a folder"]),
        (&file, "no/x", &["there is no folder", "no; make it first"]),
        (&model, "note/x", &["cannot be in", "note, which is a file", "; give a name in a folder"]),
        (&model, "note/x/y", &["cannot be in", "note, which is a file", "; give a name in a folder"]),
        (&model, "no/x", &["there is no folder", "no; make it first"]),
        (&model, "model/..", &["model/..: holds the folder that is read"]),
        (&model, ".", &["holds the folder that is read"]),
    ];
    for (input, output, words) in cases {
        let output = folder.file(output);
        let args = ["quantize", input, "-o", &output, "--recipe", "nvfp4"];
        for end in [&[][..], &["--dry-run"]] {
            assert_words(&bad(2, &[&args[..], end].concat()), words);
            assert_eq!(folder.names(), names, "{output}");
        }
    }
    for input in [&file, &model] {
        assert_words(&bad(2, &["quantize", input, "-o", "", "--recipe", "nvfp4"]), &["--output"]);
    }
    // A name of a folder is one, however it ends.
    for (i, end) in ["/", "/.", "/./"].into_iter().enumerate() {
        let output = folder.file(&format!("out{i}"));
        good(&["quantize", &model, "-o", &format!("{output}{end}"), "--recipe", "nvfp4"]);
        assert!(Path::new(&output).join("config.json").exists());
    }
}

#[test]
fn dry_runs_find_what_the_output_forbids_and_leave_nothing() {
    let folder = Folder::new();
    let (file, model) = (folder.file("in"), folder.file("model"));
    common::model(&file);
    model_folder(&model, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    fs::create_dir(folder.file("full")).unwrap();
    fs::write(folder.file("full/precious"), "mine").unwrap();
    // What an interrupted run left, and somebody else's folder.
    for (name, content) in [(".old.partial", ".scaled-gemm-is-writing"), (".other.partial", "precious")] {
        fs::create_dir(folder.file(name)).unwrap();
        fs::write(folder.file(&format!("{name}/{content}")), "").unwrap();
        fs::write(folder.file(&format!("{name}/half")), "half a shard").unwrap();
    }
    let names = folder.names();
    let dry = |input: &str, output: &str| {
        ["quantize", input, "-o", &folder.file(output), "--recipe", "fp8-row", "--dry-run"].map(str::to_string)
    };
    let cases: [(&str, &str, &[&str]); 5] = [
        (&file, "in", &["it is the input"]),
        (&file, "full", &["is a folder"]),
        (&model, "full", &["not empty"]),
        (&model, "in", &["is a file"]),
        (&model, "other", &["not ours"]),
    ];
    for (input, output, words) in cases {
        let args = dry(input, output);
        let args = args.each_ref().map(String::as_str);
        let dry = bad(2, &args);
        assert_words(&dry, words);
        // The words of the run itself.
        assert_eq!(bad(2, &args[..args.len() - 1]), dry);
        assert_eq!(folder.names(), names);
    }
    for (input, output) in [(&file, "new"), (&model, "new"), (&model, "old")] {
        good(&dry(input, output).each_ref().map(String::as_str));
        assert_eq!(folder.names(), names);
        assert!(Path::new(&folder.file(".old.partial/half")).exists());
    }
    // What its reader would refuse is found by the header alone.
    let clash = folder.file("clash");
    write(&clash, &[f32_tensor("w", [16, 32], 1), f32_tensor("w_scale_inv", [1, 1], 1)]);
    let args = dry(&clash, "new");
    assert_words(&bad(2, &args.each_ref().map(String::as_str)), &["would be read as a scale of w"]);
}

/// (It was emptied for the output, where it held the mark of a run.)
#[test]
fn the_folder_that_is_read_is_not_where_the_output_is_written() {
    let folder = Folder::new();
    let (partial, inside) = (folder.file(".out.partial"), folder.file(".out.partial/model"));
    for path in [&partial, &inside] {
        model_folder(path, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    }
    let weights = fs::read(format!("{partial}/model.safetensors")).unwrap();
    for is_marked in [false, true] {
        // A folder that is being written is not read; what is in it may be.
        let inputs = if is_marked { vec![&inside] } else { vec![&partial, &inside] };
        if is_marked {
            fs::write(format!("{partial}/.scaled-gemm-is-writing"), "").unwrap();
        }
        for input in inputs {
            let output = folder.file("out");
            let is = if input == &inside { "holds" } else { "is" };
            let args = ["quantize", input, "-o", &output, "--recipe", "nvfp4"];
            for end in [&[][..], &["--dry-run"]] {
                let error = bad(2, &[&args[..], end].concat());
                let words = format!(".out.partial until it is whole, which {is} the folder that is read, ");
                assert_words(&error, &["out: would be written as ", &words, "; give another name"]);
            }
            for path in [&partial, &inside] {
                assert_eq!(fs::read(format!("{path}/model.safetensors")).unwrap(), weights);
            }
        }
    }
    assert_eq!(folder.names(), [".out.partial"]);
}

/// Root may write everywhere; then there is nothing to refuse.
#[cfg(unix)]
#[test]
fn dry_runs_ask_whether_a_folder_may_be_written() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let (file, model, shut) = (folder.file("in"), folder.file("model"), folder.file("shut"));
    common::model(&file);
    model_folder(&model, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    fs::create_dir(&shut).unwrap();
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(format!("{shut}/probe"), "").is_ok() {
        println!("skipped: this user may write everywhere");
        return;
    }
    let output = format!("{shut}/out");
    for input in [&file, &model] {
        let args = ["quantize", input, "-o", &output, "--recipe", "fp8-row", "--dry-run"];
        assert_words(&bad(2, &args), &["can be made in", "that you may write to"]);
    }
}

/// (The run itself found it after all the work of a dry one.)
#[cfg(target_os = "linux")]
#[test]
fn dry_runs_ask_whether_files_can_be_copied() {
    let folder = Folder::new();
    let (model, output) = (folder.file("model"), folder.file("out"));
    model_folder(&model, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    // Nobody may read it, root neither.
    let unread = "/proc/sys/vm/compact_memory";
    if !Path::new(unread).is_file() || fs::File::open(unread).is_ok() {
        println!("skipped: no file that cannot be read");
        return;
    }
    std::os::unix::fs::symlink(unread, format!("{model}/tokenizer.json")).unwrap();
    let args = ["quantize", &model, "-o", &output, "--recipe", "fp8-row"];
    let error = bad(2, &args);
    assert_words(&error, &["tokenizer.json: ", "Permission denied"]);
    assert_eq!(bad(2, &[&args[..], &["--dry-run"]].concat()), error);
    // Without a place for the output, too.
    assert_eq!(bad(2, &["quantize", &model, "--recipe", "fp8-row", "--dry-run"]), error);
    assert_eq!(folder.names(), ["model"]);
    // ModelOpt's config is copied where what is quantized stays, and else is not read. (A dry run did not ask for it.)
    let (model, plain) = (folder.file("quantized"), f32_tensor("w.weight", [16, 32], 1));
    let quantized =
        [("q.weight", Dtype::F8_E4M3, vec![16, 32], vec![0x38; 512]), f32_tensor("q.weight_scale", [1, 1], 2)];
    model_folder(
        &model,
        &[&[plain][..], &quantized].concat(),
        Some(json!({"quantization_config": {"quant_method": "fp8"}})),
    );
    std::os::unix::fs::symlink(unread, format!("{model}/hf_quant_config.json")).unwrap();
    let args = ["quantize", &model, "-o", &output, "--recipe", "fp8-row", "--dialect", "plain"];
    let error = bad(2, &args);
    assert_words(&error, &["hf_quant_config.json: ", "Permission denied"]);
    assert_eq!(bad(2, &[&args[..], &["--dry-run"]].concat()), error);
}

/// (A new folder in the one that was read was made, and the next that read that one met it.)
#[test]
fn an_output_in_or_around_the_folder_that_is_read_is_refused() {
    let folder = Folder::new();
    let (model, packed) = (folder.file("deep/model"), folder.file("deep/q"));
    fs::create_dir(folder.file("deep")).unwrap();
    model_folder(&model, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    good(&["quantize", &model, "-o", &packed, "--recipe", "nvfp4"]);
    let links: &[&str] = if cfg!(unix) { &["link", "link/new"] } else { &[] };
    #[cfg(unix)]
    std::os::unix::fs::symlink("deep/q", folder.file("link")).unwrap();
    let places = ["deep/q/new", "deep/q/.", "deep/q", "deep/q/../q/new", "deep/q/a/b", "deep", "deep/../../x"];
    for place in places.iter().chain(links) {
        let output = match *place {
            "deep/../../x" => folder.0.parent().unwrap().to_str().unwrap().to_string(),
            place => folder.file(place),
        };
        let before = fs::read_dir(&packed).unwrap().count();
        let plain = ["quantize", &packed, "--recipe", "nvfp4", "--dialect", "plain", "--only", ".", "-o", &output];
        for args in [&["dequantize", &packed, "-o", &output][..], &plain, &[&plain[..], &["--dry-run"]].concat()] {
            assert_words(
                &bad(2, args),
                &["-o ", "the folder that is read, ", "deep/q; give the name of a new folder beside"],
            );
        }
        assert_eq!(fs::read_dir(&packed).unwrap().count(), before);
    }
    assert_words(&bad(2, &["dequantize", &packed, "-o", &folder.file("deep/q/new")]), &["new: is in the folder"]);
    assert_words(&bad(2, &["dequantize", &packed, "-o", &folder.file("deep")]), &["deep: holds the folder"]);
    assert_words(&bad(2, &["dequantize", &packed, "-o", &packed]), &["q: is the folder"]);
    // Names that begin alike.
    good(&["dequantize", &packed, "-o", &folder.file("deep/q2")]);
    let index = format!("{model}/model.safetensors.index.json");
    fs::write(&index, json!({"metadata": {}, "weight_map": {"w.weight": "model.safetensors"}}).to_string()).unwrap();
    let args = ["quantize", &index, "-o", &folder.file("deep/model/new"), "--recipe", "nvfp4"];
    assert_words(&bad(2, &args), &["is in the folder that is read"]);
}

/// (All of it was laid out anew.)
#[test]
fn a_config_differs_in_what_it_has_to() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("in"), folder.file("q"), folder.file("back"));
    model_folder(&input, &[f32_tensor("w.weight", [128, 128], 1)], None);
    let text = "{ \"z\":[1,\t2] ,\r\n\n  \"torch_dtype\" : \"float16\", \"q\": {\"b\":1,\"a\":-1E5},\"n\": null\n}";
    let (place, written) = (format!("{input}/config.json"), format!("{packed}/config.json"));
    let run = |config: &str| {
        fs::write(&place, config).unwrap();
        good(&["quantize", &input, "-o", &packed, "--recipe", "fp8-128x128"]);
        let quantized = fs::read_to_string(&written).unwrap();
        good(&["dequantize", &packed, "-o", &back]);
        let plain = fs::read_to_string(format!("{back}/config.json")).unwrap();
        [&packed, &back].into_iter().for_each(|path| fs::remove_dir_all(path).unwrap());
        [quantized, plain]
    };
    let [quantized, plain] = run(text);
    assert_eq!(plain, text.replace("float16", "bfloat16"));
    assert!(quantized.starts_with(text.strip_suffix("\n}").unwrap()), "{quantized}");
    // In its place, and without it.
    let with = text.replace("\"q\": {", "\"quantization_config\" :null, \"q\": {");
    let [quantized, plain] = run(&with);
    assert_eq!(plain, text.replace("float16", "bfloat16"));
    let (before, after) = with.split_once("null").unwrap();
    assert!(quantized.starts_with(before) && quantized.ends_with(after), "{quantized}");
    // A null says nothing, and stays.
    good(&["quantize", &input, "-o", &packed, "--recipe", "fp8-128x128", "--dialect", "plain"]);
    good(&["dequantize", &packed, "-o", &back]);
    let plain = fs::read_to_string(format!("{back}/config.json")).unwrap();
    assert_eq!(plain, with.replace("float16", "bfloat16"));
}

/// (A dry run found nothing, and the real one gave the system's words for them.)
#[test]
fn names_that_are_too_long_to_be_written_under_are_refused_by_dry_runs_too() {
    let folder = Folder::new();
    let model = folder.file("model");
    model_folder(&model, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    let output = folder.file(&"x".repeat(250));
    let args = ["quantize", &model, "-o", &output, "--recipe", "nvfp4"];
    for options in [&["--dry-run"][..], &[]] {
        let error = bad(2, &[&args[..], options].concat());
        let words =
            "has a name of 250 bytes, and until it is whole it is written as .NAME.partial, whose 259 bytes are more";
        assert_words(&error, &[words, "; give a shorter name"]);
    }
    // Ones that no file can have.
    let long = folder.file(&"x".repeat(300));
    for input in [&model, &format!("{model}/model.safetensors")] {
        let error = bad(2, &["quantize", input, "-o", &long, "--recipe", "nvfp4"]);
        assert_words(&error, &["too long", "; give a shorter name, of at most 255 bytes on most file systems"]);
    }
    assert_eq!(folder.names(), ["model"]);
    // One that is just short enough.
    good(&["quantize", &model, "-o", &folder.file(&"x".repeat(246)), "--recipe", "nvfp4"]);
}

/// (The system said that it is no directory.)
#[test]
fn a_file_in_the_way_of_a_new_folder_is_said() {
    let folder = Folder::new();
    let model = folder.file("model");
    model_folder(&model, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    fs::write(folder.file(".out.partial"), "a file").unwrap();
    let output = folder.file("out");
    for options in [&["--dry-run"][..], &[]] {
        let error = bad(2, &[&["quantize", &model, "-o", &output, "--recipe", "nvfp4"][..], options].concat());
        assert_words(
            &error,
            &["out: cannot be written by way of ", ".out.partial, which is there and no folder; move it away"],
        );
    }
    assert_eq!(fs::read(folder.file(".out.partial")).unwrap(), b"a file");
}

/// (The system's words alone, after the disk was full.)
#[cfg(target_os = "linux")]
#[test]
fn a_disk_without_room_is_said_with_what_is_needed() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let df = std::process::Command::new("df").args(["-B1", "--output=avail"]).arg(&folder.0).output().unwrap();
    let free: u64 = String::from_utf8(df.stdout).unwrap().lines().last().unwrap().trim().parse().unwrap();
    // A file with a hole for its data, of which the codes take half.
    let rows = 1_u64 << 27;
    let header = json!({"w": {"dtype": "BF16", "shape": [rows, 8192], "data_offsets": [0, rows * 16384]}}).to_string();
    let file = fs::File::create(&input).unwrap();
    if free > rows * 4096 || file.set_len(8 + header.len() as u64 + rows * 16384).is_err() {
        println!("skipped: {free} bytes are free, or no file is so long here");
        return;
    }
    std::os::unix::fs::FileExt::write_all_at(&file, &(header.len() as u64).to_le_bytes(), 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, header.as_bytes(), 8).unwrap();
    let error = bad(1, &["quantize", &input, "-o", &output, "--recipe", "fp8-tensor"]);
    assert_words(
        &error,
        &["No space left on device: 1099511627780 bytes are to be written, and ", " were free; make room there"],
    );
    assert_eq!(folder.names(), ["in"]);
}
