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
    assert_words(&bad(2, &["quantize", &first, "-o", &second, "--recipe", "nvfp4"]), &["it is one of the shards of "]);
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

/// A file is known under every name that it has.
#[cfg(unix)]
#[test]
fn links_hide_nothing_that_is_read() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let model = sharded(&folder, "m", None);
    let [config, first] = ["config.json", "model-00001-of-00002.safetensors"].map(|name| format!("{model}/{name}"));
    let second = format!("{model}/model-00002-of-00002.safetensors");
    let [soft, hard, hub, linked] = ["soft", "hard", "hub", "linked"].map(|name| folder.file(name));
    symlink(&config, &soft).unwrap();
    fs::hard_link(&second, &hard).unwrap();
    // A cache of links to the files, and a link to a shard alone.
    fs::create_dir(&hub).unwrap();
    for name in ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"] {
        symlink(format!("{model}/{name}"), format!("{hub}/{name}")).unwrap();
    }
    symlink(&first, &linked).unwrap();
    let kept = Kept::new(&[&config, &first, &second]);
    for (input, output, words) in [
        (&first, &soft, "soft: it is the config of the model"),
        (&first, &hard, "hard: it is one of the shards of "),
        (&format!("{hub}/model-00001-of-00002.safetensors"), &config, "it is the config of the model"),
        (&linked, &second, "it is one of the shards of "),
        (&linked, &first, "it is the input"),
    ] {
        let args = ["quantize", input, "-o", output, "--recipe", "nvfp4"];
        assert_words(&bad(2, &args), &[words]);
        kept.check(&args);
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
