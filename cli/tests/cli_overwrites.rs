//! Outputs that would replace what a run reads, or a file of the model that it reads: refused before the work, and left as they are.

mod common;

use std::fs;

use common::*;
use serde_json::json;

/// What was in these files before, and is there still.
struct Kept(Vec<(String, Vec<u8>)>);

impl Kept {
    fn new(files: &[&str]) -> Self {
        Self(files.iter().map(|path| (path.to_string(), fs::read(path).unwrap())).collect())
    }

    fn check(&self, of: &[&str]) {
        for (path, bytes) in &self.0 {
            assert_eq!(&fs::read(path).unwrap(), bytes, "{path} was replaced by {of:?}");
        }
    }
}

/// Two shards with their index and config, quantized where a recipe is given: the folder.
fn sharded(folder: &Folder, name: &str, recipe: Option<&str>) -> String {
    let path = folder.file(name);
    fs::create_dir(&path).unwrap();
    let mut map = serde_json::Map::new();
    for i in 1..=2 {
        let (tensor, shard) = (format!("l.{i}.o_proj.weight"), format!("model-0000{i}-of-00002.safetensors"));
        let place = format!("{path}/{shard}");
        write(&place, &[f32_tensor(&tensor, [32, 32], i)]);
        if let Some(recipe) = recipe {
            good(&["quantize", &place, "-o", &folder.file("quantized"), "--recipe", recipe]);
            fs::rename(folder.file("quantized"), &place).unwrap();
            map.insert(format!("{tensor}_scale"), json!(shard));
        }
        map.insert(tensor, json!(shard));
    }
    fs::write(format!("{path}/model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    fs::write(format!("{path}/config.json"), json!({"architectures": ["LlamaForCausalLM"]}).to_string()).unwrap();
    path
}

/// (The index and the config that the product was read by became the product.)
#[test]
fn a_product_replaces_no_file_of_the_models_that_it_reads() {
    let folder = Folder::new();
    let model = sharded(&folder, "m", Some("fp8-row"));
    let [index, config] = ["model.safetensors.index.json", "config.json"].map(|name| format!("{model}/{name}"));
    let [first, second] = [1, 2].map(|i| format!("{model}/model-0000{i}-of-00002.safetensors"));
    let (records, b) = (folder.file("records.json"), format!("{first}:l.1.o_proj.weight"));
    fs::write(&records, "{}").unwrap();
    let kept = Kept::new(&[&index, &config, &first, &second, &records]);
    let of = |file: &str| format!("{file}:l.1.o_proj.weight");
    let cases: [(&str, &str, &[&str]); 8] = [
        (&index, &index, &["index.json: it is the input; give another name"]),
        (&model, &index, &["index.json: it is the index of the shards in ", "; give another name"]),
        (&model, &config, &["config.json: it is the config of the model in ", "; give another name"]),
        (&index, &config, &["it is the config of the model"]),
        (&first, &config, &["it is the config of the model"]),
        (&model, &second, &["it is one of the shards of ", "index.json; give another name"]),
        (&first, &second, &["it is one of the shards of "]),
        (&first, &first, &["it is the input"]),
    ];
    for (a, output, words) in cases {
        for args in [["gemm", "--a", &of(a), "--b", &b], ["gemm", "--a", &b, "--b", &of(a)]] {
            let args = [&args[..], &["-o", output]].concat();
            assert_words(&bad(2, &args), words);
            kept.check(&args);
        }
    }
    let args = ["gemm", "--a", &b, "--b", &b, "--tuning", &records, "-o", &records];
    assert_words(&bad(2, &args), &["records.json: it is the file of --tuning; give another name"]);
    kept.check(&args);
    // What is not read may be replaced.
    fs::write(folder.file("m/notes"), "old").unwrap();
    good(&["gemm", "--a", &of(&model), "--b", &b, "-o", &folder.file("m/notes")]);
}

/// (The calibration became the file that was made by it, and a shard beside the input another.)
#[test]
fn a_quantized_file_replaces_none_of_those_beside_the_input() {
    let folder = Folder::new();
    let model = sharded(&folder, "m", None);
    let [index, config] = ["model.safetensors.index.json", "config.json"].map(|name| format!("{model}/{name}"));
    let [first, second] = [1, 2].map(|i| format!("{model}/model-0000{i}-of-00002.safetensors"));
    let (calibration, hf) = (folder.file("cal.json"), format!("{model}/hf_quant_config.json"));
    fs::write(&calibration, json!({"l.1.o_proj": 3.0}).to_string()).unwrap();
    fs::write(&hf, "{}").unwrap();
    let kept = Kept::new(&[&index, &config, &first, &second, &calibration, &hf]);
    let scales = ["--dialect", "modelopt", "--input-scales", &calibration];
    let cases: [(&[&str], &str, &[&str]); 7] = [
        (&scales, &calibration, &["cal.json: it is the file of --input-scales; give another name"]),
        (&["--weight-amax", &calibration], &calibration, &["cal.json: it is the file of --weight-amax"]),
        (&[], &config, &["it is the config of the model in "]),
        (&[], &hf, &["it is the config of the model in "]),
        (&[], &index, &["it is the index of the shards in "]),
        (&[], &second, &["it is one of the shards of ", "index.json; give another name"]),
        (&[], &first, &["it is the input"]),
    ];
    for (options, output, words) in cases {
        let args = [&["quantize", &first, "-o", output, "--recipe", "nvfp4"][..], options].concat();
        for args in [&args[..], &[&args[..], &["--dry-run"]].concat()] {
            assert_words(&bad(2, args), words);
            kept.check(args);
        }
    }
    // A shard that is still to be fetched has its name already.
    fs::remove_file(&second).unwrap();
    assert_words(
        &bad(2, &["quantize", &first, "-o", &second, "--recipe", "nvfp4"]),
        &[
            "it is one of the shards of ",
            "index.json, which is not there; give another name for the output, or remove the index",
        ],
    );
    // Nor is a config put there, which would be the model's.
    fs::remove_file(&config).unwrap();
    assert_words(
        &bad(2, &["quantize", &first, "-o", &config, "--recipe", "nvfp4"]),
        &["config.json: it would become the config of the model in ", "; give another name"],
    );
    // Elsewhere it may have that name.
    fs::create_dir(folder.file("q")).unwrap();
    good(&["quantize", &first, "-o", &folder.file("q/model-00002-of-00002.safetensors"), "--recipe", "nvfp4"]);
}

#[test]
fn a_dequantized_file_replaces_none_of_those_beside_the_input() {
    let folder = Folder::new();
    let model = sharded(&folder, "m", Some("fp8-row"));
    let [index, config] = ["model.safetensors.index.json", "config.json"].map(|name| format!("{model}/{name}"));
    let [first, second] = [1, 2].map(|i| format!("{model}/model-0000{i}-of-00002.safetensors"));
    let kept = Kept::new(&[&index, &config, &first, &second]);
    for (output, words) in [
        (&config, "it is the config of the model in "),
        (&index, "it is the index of the shards in "),
        (&second, "it is one of the shards of "),
        (&first, "it is the input"),
    ] {
        let args = ["dequantize", &first, "-o", output];
        assert_words(&bad(2, &args), &[words, "; give another name"]);
        kept.check(&args);
    }
}

/// A file is known under every name that leads to it. Another name of its own, in another folder, may be given to something else.
#[cfg(unix)]
#[test]
fn links_hide_nothing_that_is_read() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let model = sharded(&folder, "m", None);
    let [config, first] = ["config.json", "model-00001-of-00002.safetensors"].map(|name| format!("{model}/{name}"));
    let second = format!("{model}/model-00002-of-00002.safetensors");
    let [soft, hub, linked, around] = ["soft", "hub", "linked", "around"].map(|name| folder.file(name));
    symlink(&config, &soft).unwrap();
    symlink(&model, &around).unwrap();
    // A cache of links to the files, and a link to a shard alone.
    fs::create_dir(&hub).unwrap();
    for name in ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"] {
        symlink(format!("{model}/{name}"), format!("{hub}/{name}")).unwrap();
    }
    symlink(&first, &linked).unwrap();
    let kept = Kept::new(&[&config, &first, &second]);
    for (input, output, words) in [
        (&first, &soft, "soft: it is the config of the model"),
        (&first, &format!("{around}/model-00002-of-00002.safetensors"), "it is one of the shards of "),
        (&format!("{hub}/model-00001-of-00002.safetensors"), &config, "it is the config of the model"),
        (&linked, &second, "it is one of the shards of "),
        (&linked, &first, "it is the input"),
    ] {
        let args = ["quantize", input, "-o", output, "--recipe", "nvfp4"];
        assert_words(&bad(2, &args), &[words]);
        kept.check(&args);
    }
    // (Refused as the input itself, which keeps its name and its bytes.)
    let copied = folder.file("copied");
    fs::create_dir(&copied).unwrap();
    for (file, name) in [(&config, "config.json"), (&first, "first"), (&second, "second")] {
        let output = format!("{copied}/{name}");
        fs::hard_link(file, &output).unwrap();
        let args = ["quantize", &first, "-o", &output, "--recipe", "nvfp4"];
        good(&args);
        kept.check(&args);
        assert_ne!(fs::read(&output).unwrap(), fs::read(file).unwrap(), "{output} was not written");
    }
}

/// (The folders of the first name and of the last were asked, and the index lay beside a link between them.)
#[cfg(unix)]
#[test]
fn what_lies_beside_a_link_on_the_way_is_replaced_by_nothing() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let [blobs, snapshots] = ["blobs", "snapshots"].map(|name| folder.file(name));
    let snapshot = format!("{snapshots}/abc");
    fs::create_dir(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    let map = json!({"l.1.o_proj.weight": "a.safetensors", "l.2.o_proj.weight": "b.safetensors"});
    write(&format!("{blobs}/s1"), &[f32_tensor("l.1.o_proj.weight", [32, 32], 1)]);
    write(&format!("{blobs}/s2"), &[f32_tensor("l.2.o_proj.weight", [32, 32], 2)]);
    fs::write(format!("{blobs}/index"), json!({"weight_map": map}).to_string()).unwrap();
    fs::write(format!("{blobs}/config"), json!({"architectures": ["LlamaForCausalLM"]}).to_string()).unwrap();
    let [index, config] = ["model.safetensors.index.json", "config.json"];
    for (blob, name) in [("s1", "a.safetensors"), ("s2", "b.safetensors"), ("index", index), ("config", config)] {
        symlink(format!("../../blobs/{blob}"), format!("{snapshot}/{name}")).unwrap();
    }
    let [mid, outer] = ["mid", "outer"].map(|name| folder.file(name));
    symlink("snapshots/abc/a.safetensors", &mid).unwrap();
    symlink("mid", &outer).unwrap();
    let kept =
        Kept::new(&["s1", "s2", "index", "config"].map(|blob| format!("{blobs}/{blob}")).each_ref().map(|b| &**b));
    for input in [&mid, &outer] {
        for (name, words) in [
            ("a.safetensors", "it is the input"),
            ("b.safetensors", "it is one of the shards of "),
            (index, "it is the index of the shards in "),
            (config, "it is the config of the model in "),
        ] {
            let args = ["quantize", input, "-o", &format!("{snapshot}/{name}"), "--recipe", "nvfp4"];
            assert_words(&bad(2, &args), &[words, "; give another name"]);
            kept.check(&args);
        }
        let args = ["quantize", input, "-o", &format!("{blobs}/s2"), "--recipe", "nvfp4"];
        assert_words(&bad(2, &args), &["it is one of the shards of "]);
        kept.check(&args);
    }
}

/// (What a dangling link leads to became the config by the way of the link.)
#[cfg(unix)]
#[test]
fn a_link_to_what_is_not_there_yet_is_a_name_of_it() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let [blobs, snapshot] = ["blobs", "snap"].map(|name| folder.file(name));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&snapshot).unwrap();
    let input = format!("{snapshot}/in.safetensors");
    write(&input, &[f32_tensor("w", [16, 32], 1)]);
    let index = format!("{snapshot}/model.safetensors.index.json");
    fs::write(index, json!({"weight_map": {"w": "in.safetensors", "v": "b.safetensors"}}).to_string()).unwrap();
    for (blob, name) in [("cfg", "config.json"), ("s2", "b.safetensors")] {
        symlink(format!("../blobs/{blob}"), format!("{snapshot}/{name}")).unwrap();
    }
    for (blob, words) in [("cfg", "it would become the config of the model in "), ("s2", "it is one of the shards of ")]
    {
        let output = format!("{blobs}/{blob}");
        assert_words(&bad(2, &["quantize", &input, "-o", &output, "--recipe", "nvfp4"]), &[words]);
        assert!(!fs::exists(&output).unwrap(), "{output}");
    }
    good(&["quantize", &input, "-o", &format!("{blobs}/other"), "--recipe", "nvfp4"]);
}

/// Names of shards that are very long, and very many. (Each of their parts was asked for: half a minute for 800 kB.)
#[test]
fn an_index_of_names_that_no_file_has_is_read_in_no_time() {
    let folder = Folder::new();
    let input = folder.file("in.safetensors");
    write(&input, &[f32_tensor("w", [16, 32], 1)]);
    let many = (0..300_000).map(|i| (format!("{i}"), json!(format!("s{i}")))).collect::<serde_json::Map<_, _>>();
    let deep = (0..400).map(|i| (format!("{i}"), json!(format!("{i}/{}x", "a/".repeat(2000)))));
    for map in [json!({"q": "a/".repeat(400_000)}), json!(many), json!(deep.collect::<serde_json::Map<_, _>>())] {
        fs::write(folder.file("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
        within_seconds(10, || good(&["quantize", &input, "-o", &folder.file("out"), "--recipe", "nvfp4", "--dry-run"]));
    }
}

/// (The records that were to be used became the record that was written.)
#[test]
fn a_bench_replaces_no_records_that_it_uses() {
    let folder = Folder::new();
    let records = folder.file("records.json");
    fs::write(&records, "{}").unwrap();
    let kept = Kept::new(&[&records]);
    for option in ["--json", "--plot"] {
        let args = ["bench", "--shapes", "16x16x16", "--schemes", "fp8-row", "--tuning", &records, option, &records];
        assert_words(&bad(2, &args), &["records.json: it is the file of --tuning; give another name"]);
        kept.check(&args);
    }
    let (plain, dotted) = (folder.file("new"), folder.file("./new"));
    let args = ["bench", "--shapes", "16x16x16", "--schemes", "fp8-row", "--json", &plain, "--plot", &dotted];
    assert_words(&bad(2, &args), &["--json and --plot name one file; give two"]);
}

#[test]
fn it_is_said_that_a_file_is_replaced() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    write(&input, &[f32_tensor("w", [16, 32], 1)]);
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dry-run"];
    assert!(!said(&args).contains("would be replaced"));
    fs::write(&output, "old").unwrap();
    assert_words(&said(&args), &["out: is there, and would be replaced"]);
    for command in ["quantize", "dequantize", "gemm", "tune"] {
        let help = good(&[command, "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_words(&help, &["one that is there is replaced"]);
    }
}

/// (One longer than is read named no shards: they were overwritten.)
#[test]
fn shards_of_an_index_that_is_too_long_to_be_read_are_replaced_by_nothing() {
    let folder = Folder::new();
    let model = sharded(&folder, "m", None);
    let [index, config] = ["model.safetensors.index.json", "config.json"].map(|name| format!("{model}/{name}"));
    let [first, second] = [1, 2].map(|i| format!("{model}/model-0000{i}-of-00002.safetensors"));
    let mut text = fs::read_to_string(&index).unwrap();
    text.push_str(&" ".repeat(16 << 20));
    fs::write(&index, &text).unwrap();
    let kept = Kept::new(&[&index, &config, &first, &second]);
    let args = ["quantize", &first, "-o", &second, "--recipe", "fp8-row"];
    let words =
        format!("it may be one of the shards of {index}, which has {} bytes, and 16777216 are read", text.len());
    assert_words(&bad(2, &args), &[&format!("{second}: {words}; give another name for the output")]);
    kept.check(&args);
    // What is not there yet is no shard that could be lost; nor is what lies elsewhere.
    for output in [format!("{model}/new.safetensors"), folder.file("new.safetensors")] {
        good(&["quantize", &first, "-o", &output, "--recipe", "fp8-row"]);
    }
}
