//! Where results may go: names that no file or folder can have, and what a dry run finds out without leaving anything.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use serde_json::json;

#[test]
fn names_that_no_output_can_have_are_refused_before_the_work() {
    let folder = Folder::new();
    let (file, model) = (folder.file("in"), folder.file("model"));
    common::model(&file);
    model_folder(&model, &[f32_tensor("w.weight", [16, 32], 1)], Some(json!({})));
    fs::write(folder.file("note"), "a file").unwrap();
    let names = folder.names();
    let cases: [(&str, &str, &[&str]); 8] = [
        (&file, "x/", &["x/: is the name of a folder", "; give the name of a file"]),
        (&file, "x/.", &["x/.: is the name of a folder", "; give the name of a file"]),
        (&file, "note/x", &["cannot be in", "note, which is a file", "; give a name in a folder"]),
        (&file, "no/x", &["there is no folder", "no; make it first"]),
        (&model, "note/x", &["cannot be in", "note, which is a file", "; give a name in a folder"]),
        (&model, "note/x/y", &["cannot be in", "note, which is a file", "; give a name in a folder"]),
        (&model, "no/x", &["there is no folder", "no; make it first"]),
        (&model, "model/..", &["is there, and not empty"]),
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
    // Names that would not be read again are found by the header alone.
    let clash = folder.file("clash");
    write(&clash, &[f32_tensor("w", [16, 32], 1), f32_tensor("w_scale_inv", [1, 1], 1)]);
    let args = dry(&clash, "new");
    assert_words(&bad(2, &args.each_ref().map(String::as_str)), &["would not be read again"]);
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
