//! Folders and indices: which files are taken, and what is refused; and folders of arbitrary bytes.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, Dialect, OutputFolder};
use scaled_gemm::model_folder::{InputScales, ModelConfig, fused_groups};
use scaled_gemm::reference::Noise;
use scaled_gemm::{Fp8Format, Scheme};

use super::{Folder, exchange_word, f32_bytes, foreign, limits, random_matrix, read_everything, written};

fn one(folder: &Folder, file: &str, name: &str, value: f32) {
    foreign(&folder.file(file), &[(name, Dtype::F32, vec![1], f32_bytes(&[value]))], None);
}

fn index(folder: &Folder, file: &str, pairs: &[(&str, &str)]) {
    let map: serde_json::Map<_, _> = pairs.iter().map(|(t, f)| (t.to_string(), (*f).into())).collect();
    fs::write(folder.file(file), serde_json::json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
}

fn names(file: &Checkpoint) -> Vec<&str> {
    file.tensors().iter().map(|t| t.name.as_str()).collect()
}

fn refused(folder: &Folder, words: &[&str]) {
    let error = Checkpoint::open(&folder.0).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error} lacks one of {words:?}");
}

#[test]
fn the_files_of_a_folder_are_those_that_engines_take() {
    let folder = Folder::new();
    refused(&folder, &["holds no safetensors file"]);
    one(&folder, "b.safetensors", "b", 2.0);
    one(&folder, "a.safetensors", "a", 1.0);
    // Without an index: all.
    let file = Checkpoint::open(&folder.0).unwrap();
    assert_eq!((names(&file), file.files().len(), file.folder()), (vec!["a", "b"], 2, Some(folder.0.as_path())));
    assert_eq!(file.values("b").unwrap().0, [2.0]);
    // model.safetensors is the model, whatever lies beside it.
    one(&folder, "model.safetensors", "m", 3.0);
    assert_eq!(names(&Checkpoint::open(&folder.0).unwrap()), ["m"]);
    // An index names its files, in any order; a tensor that it leaves out is there all the same, as engines load it.
    foreign(
        &folder.file("b.safetensors"),
        &[("b", Dtype::F32, vec![1], f32_bytes(&[2.0])), ("c", Dtype::F32, vec![1], f32_bytes(&[4.0]))],
        None,
    );
    index(&folder, "model.safetensors.index.json", &[("b", "b.safetensors"), ("a", "a.safetensors")]);
    for path in [folder.0.clone(), folder.file("model.safetensors.index.json")] {
        let file = Checkpoint::open(&path).unwrap();
        assert_eq!((names(&file), file.folder().is_some()), (vec!["a", "b", "c"], true));
    }
    assert_eq!(Checkpoint::open(folder.file("b.safetensors")).unwrap().folder(), None);
}

#[test]
fn what_is_wrong_with_shards_is_said() {
    let folder = Folder::new();
    one(&folder, "a.safetensors", "a", 1.0);
    one(&folder, "b.safetensors", "b", 2.0);
    let shards = |pairs: &[(&str, &str)]| index(&folder, "model.safetensors.index.json", pairs);
    shards(&[("a", "b.safetensors"), ("b", "b.safetensors")]);
    refused(&folder, &["tensor a", "should be in", "b.safetensors", "is in none of its files"]);
    shards(&[("a", "b.safetensors"), ("b", "a.safetensors")]);
    refused(&folder, &["tensor a", "should be in", "but is in"]);
    shards(&[("a", "a.safetensors"), ("x", "b.safetensors")]);
    refused(&folder, &["tensor x", "in none"]);
    shards(&[("a", "a.safetensors"), ("c", "c.safetensors")]);
    refused(&folder, &["c.safetensors"]);
    for name in ["../a.safetensors", "/a.safetensors", "x/a.safetensors", "a", ".safetensors", "C:a.safetensors"] {
        shards(&[("a", name)]);
        refused(&folder, &["no name of a safetensors file"]);
    }
    shards(&[("a", &("x".repeat(65536) + ".safetensors"))]);
    refused(&folder, &["no name of a safetensors file"]);
    fs::remove_file(folder.file("model.safetensors.index.json")).unwrap();
    one(&folder, "b.safetensors", "a", 2.0);
    refused(&folder, &["tensor a", "is in two files", "a.safetensors and", "b.safetensors"]);
    // Two recipes for one matrix would depend on which file is read first.
    let recipe = |text: &str| Some([("scaled_gemm.m".to_string(), text.to_string())].into());
    foreign(&folder.file("a.safetensors"), &[("a", Dtype::F32, vec![0], vec![])], recipe("one"));
    foreign(&folder.file("b.safetensors"), &[("b", Dtype::F32, vec![0], vec![])], recipe("two"));
    // Which neither is: somebody else's.
    Checkpoint::open(&folder.0).unwrap();
    let cast = |group: &str| {
        recipe(&format!(
            r#"{{"scheme":"cast","format":"e4m3","group":"{group}","scales":"row-major","transposed":false}}"#
        ))
    };
    // (Only one was named that has the tensor, and of this one none.)
    let both = ["different recipes in the metadata of two files: ", "a.safetensors and ", "c.safetensors; remove"];
    let files = |a, c| {
        for (name, entry) in [("a", a), ("b", None), ("c", c)] {
            foreign(&folder.file(&format!("{name}.safetensors")), &[(name, Dtype::F32, vec![0], vec![])], entry);
        }
    };
    for (a, c) in [(cast("1x16"), cast("1x32")), (cast("1x16"), recipe("two")), (recipe("one"), cast("1x32"))] {
        files(a, c);
        refused(&folder, &[&["tensor m"][..], &both].concat());
    }
    // Of a tensor that is there it is said, whatever they are.
    let of_b = |text: &str| Some([("scaled_gemm.b".to_string(), text.to_string())].into());
    files(of_b("one"), of_b("two"));
    refused(&folder, &[&["tensor b"][..], &both].concat());
    fs::remove_file(folder.file("c.safetensors")).unwrap();
    one(&folder, "x.safetensors.index.json", "x", 1.0);
    one(&folder, "y.safetensors.index.json", "x", 1.0);
    refused(&folder, &["several indices"]);
}

/// (`expected struct Parsed with 1 element`, and a list of one was taken.)
#[test]
fn what_is_no_object_is_called_no_index() {
    let folder = Folder::new();
    one(&folder, "a.safetensors", "a", 1.0);
    for text in ["[]", r#"[{"a": "a.safetensors"}]"#, "7", "\"a\"", ""] {
        fs::write(folder.file("model.safetensors.index.json"), text).unwrap();
        let words = "is no index of shards, which is a JSON object with a weight_map of tensors and their files";
        refused(&folder, &["model.safetensors.index.json", words, "; fetch or write the index again"]);
    }
}

/// (Files with zeros that were not written yet were read as a model.)
#[test]
fn a_folder_that_is_being_written_is_not_read() {
    let folder = Folder::new();
    let output = OutputFolder::create(folder.file("q")).unwrap();
    let partial = output.temporary().to_path_buf();
    let words = [
        "did not finish, or has not yet",
        "; wait for it if it still runs; else run the command that wrote it again, or remove the folder",
    ];
    let refused = |path: &Path, words: &[&str]| {
        let error = Checkpoint::open(path).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error} lacks one of {words:?}");
    };
    // Also before there is a file.
    refused(&partial, &words);
    one(&folder, "a.safetensors", "a", 1.0);
    let file = partial.join("model.safetensors");
    fs::copy(folder.file("a.safetensors"), &file).unwrap();
    let index = partial.join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map": {"a": "model.safetensors"}}"#).unwrap();
    for path in [&partial, &file, &index] {
        refused(path, &words);
    }
    #[cfg(unix)]
    for (name, of) in [("folder", &partial), ("file", &file)] {
        std::os::unix::fs::symlink(of, folder.file(name)).unwrap();
        refused(&folder.file(name), &words);
    }
    // (Links to shards were followed from a folder without a mark.)
    #[cfg(unix)]
    for (name, of) in [("shards", "model.safetensors"), ("indices", "model.safetensors.index.json")] {
        let linked = folder.file(name);
        fs::create_dir(&linked).unwrap();
        for name in ["model.safetensors", of] {
            let _ = fs::remove_file(linked.join(name));
            std::os::unix::fs::symlink(partial.join(name), linked.join(name)).unwrap();
            refused(&linked, &words);
        }
        fs::remove_file(linked.join("model.safetensors")).unwrap();
        fs::copy(folder.file("a.safetensors"), linked.join("model.safetensors")).unwrap();
        if of != "model.safetensors" {
            refused(&linked, &words);
        }
    }
    // Of what is not there nothing is said but that. (Whoever mistyped a name was told to remove the folder.)
    let error = Checkpoint::open(partial.join("none.safetensors")).unwrap_err().to_string();
    assert!(error.contains("none.safetensors") && !error.contains("did not finish"), "{error}");
    // A mark that says so is one that could not be removed.
    fs::write(partial.join(".scaled-gemm-is-writing"), "whole").unwrap();
    for path in [&partial, &file] {
        refused(path, &["what was written is whole", "; remove .scaled-gemm-is-writing from it"]);
    }
    fs::remove_file(partial.join(".scaled-gemm-is-writing")).unwrap();
    for path in [&partial, &file, &index] {
        assert_eq!(names(&Checkpoint::open(path).unwrap()), ["a"]);
    }
}

/// (It said "failed to fill whole buffer", of a file and no tensor.)
#[test]
fn a_shard_that_is_cut_off_while_it_is_read_says_what_is_missing() {
    let folder = Folder::new();
    one(&folder, "a.safetensors", "a", 1.0);
    let path = folder.file("b.safetensors");
    foreign(&path, &[("b", Dtype::F32, vec![4, 4], f32_bytes(&[2.0; 16]))], None);
    let file = Checkpoint::open(&folder.0).unwrap();
    let whole = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(whole - 20).unwrap();
    let start = file.get("b").unwrap().bytes();
    let error = file.matrix("b").unwrap_err().to_string();
    let place = format!("64 bytes from byte {} of the file on", whole - start);
    let has = format!("it has {}, where it had {whole}", whole - 20);
    for word in ["b.safetensors: tensor b", "was cut off", &place, &has, "; fetch or write the file again"] {
        assert!(error.contains(word), "{error} lacks {word}");
    }
    // What is there is read.
    assert_eq!(file.matrix_rows("b", 0..2).unwrap().as_slice().unwrap(), [2.0; 8]);
    assert_eq!(file.values("a").unwrap().0, [1.0]);
}

/// Shards of a folder without an index have any names that its file system takes.
#[cfg(unix)]
#[test]
fn names_of_shards_reach_no_terminal_as_they_are() {
    let folder = Folder::new();
    one(&folder, "\u{1b}[2J.safetensors", "a", 1.0);
    let file = Checkpoint::open(&folder.0).unwrap();
    let error = file.quant_matrix("a").unwrap_err().to_string();
    assert!(error.contains(r"\u{1b}[2J.safetensors: tensor a") && !error.contains('\u{1b}'), "{error:?}");
    fs::write(folder.file("\u{1b}[2J.safetensors"), "").unwrap();
    let error = Checkpoint::open(&folder.0).unwrap_err().to_string();
    assert!(error.contains(r"\u{1b}[2J") && !error.contains('\u{1b}'), "{error:?}");
}

/// Patterns of a few bytes that stand for programs of megabytes, or are very many.
#[test]
fn patterns_of_a_config_have_limits() {
    let folder = Folder::new();
    let config = |patterns: &[String]| {
        let config = serde_json::json!({"quantization_config": {"ignore": patterns}});
        fs::write(folder.file("config.json"), config.to_string()).unwrap();
        ModelConfig::read(&folder.0)
    };
    // As many as there may be, one that is Python's alone, and names.
    let mut list: Vec<_> = (0..254).map(|i| format!(r"re:.*layers\.{i}\.\w+\.\w+$")).collect();
    list.extend(["re:(?!x).*", "re:.*gate$", "lm_head", "visual*", "a.b"].map(String::from));
    let read = config(&list).unwrap().unwrap();
    for (module, ignored) in [
        ("model.layers.0.mlp.up_proj", true),
        ("model.layers.253.mlp.up_proj", true),
        ("model.layers.254.mlp.up_proj", false),
        ("l.gate", true),
        ("lm_head", true),
        ("visual.x", true),
        ("a.b", true),
        ("a.b.c", true),
        ("a.bc", false),
        ("a", false),
    ] {
        assert_eq!(read.ignores(module), ignored, "{module}");
    }
    // Each of these would be compiled in a second or take megabytes.
    let heavy: Vec<_> = (0..100).map(|i| format!("re:((a{{1,99}}){{1,99}}){{1,99}}{i}")).collect();
    for (patterns, most) in [(heavy.as_slice(), "over 671088 bytes"), (&heavy[..1], "over 8388608 bytes")] {
        let error = config(patterns).unwrap_err().to_string();
        assert!(
            error.contains("config.json") && error.contains("pattern ((a{1,99}") && error.contains(most),
            "{error}"
        );
    }
    let many: Vec<_> = (0..300).map(|i| format!("re:{i}")).collect();
    let long = [format!("re:{}", "\\w".repeat(10_000))];
    for patterns in [many.as_slice(), &long] {
        let error = config(patterns).unwrap_err().to_string();
        assert!(error.contains("patterns of") && error.contains("256 of 16384"), "{error}");
    }
}

/// Shapes whose rows would have more bytes than a number holds, where there is no row.
#[test]
fn rows_that_no_number_measures_are_no_panic() {
    let folder = Folder::new();
    for cols in ["9223372036854775808", "4611686018427387904", "18446744073709551615"] {
        let header = format!(r#"{{"a":{{"dtype":"F32","shape":[0,{cols}],"data_offsets":[0,0]}}}}"#);
        super::raw(&folder.file("a"), &header, &[]);
        let file = Checkpoint::open(folder.file("a")).unwrap();
        assert_eq!(file.matrix("a").is_ok(), file.matrix_rows("a", 0..0).is_ok(), "{cols}");
        assert!(file.matrix_rows("a", 0..1).is_err(), "{cols}");
    }
}

/// Every file of a small model, and what an engine keeps of it.
fn model(folder: &Folder) -> Vec<(&'static str, Vec<u8>)> {
    let out = folder.file("seed");
    let mut layout = CheckpointLayout::of_dialect(Dialect::CompressedTensors);
    layout.metadata("format", "pt");
    let schemes = [Scheme::Nvfp4, Scheme::Fp8Row(Fp8Format::E4M3), Scheme::Fp8Tensor(Fp8Format::E4M3)];
    let modules = ["l.q_proj.weight", "l.k_proj.weight", "l.o_proj.weight"];
    for (module, scheme) in modules.iter().zip(schemes) {
        layout.quantized(module, 4, 16, written(scheme));
    }
    layout.tensor("norm", Dtype::F32, &[4]);
    let writer = layout.create_folder(OutputFolder::create(&out).unwrap(), 150, &[]).unwrap();
    for (i, (module, scheme)) in modules.iter().zip(schemes).enumerate() {
        writer.write_quantized(module, &random_matrix(scheme, 4, 16, i as u64)).unwrap();
    }
    writer.write("norm", &[0; 16]).unwrap();
    let config = r#"{"architectures": ["LlamaForCausalLM"], "quantization_config": {"ignore": ["lm_head", "re:.*gate$", "model.v*"]}}"#;
    writer.folder().unwrap().write("config.json", config.as_bytes()).unwrap();
    writer.folder().unwrap().write("amax.json", br#"{"l.q_proj": 1.5, "l.k_proj.weight": 2}"#).unwrap();
    writer.finish().unwrap();
    let names = [
        "amax.json",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ];
    let found = names.map(|name| (name, fs::read(out.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))));
    assert_eq!(fs::read_dir(&out).unwrap().count(), names.len());
    found.to_vec()
}

/// Everything that reads a folder, over whatever is in it.
fn read_folder(folder: &Folder) -> Option<usize> {
    let config = ModelConfig::read(&folder.0);
    let architecture = config.iter().flatten().map(|config| config.architecture().to_string()).next();
    let scales = InputScales::read(folder.file("amax.json"));
    let known = scales.iter().filter(|scales| scales.amax("l.q_proj").is_some()).count();
    for config in config.iter().flatten() {
        let _ = (config.ignores("lm_head"), config.ignores("model.vision.0"), config.with_quantization(None));
        // What is written is read again, and says what was to be said.
        fs::create_dir_all(folder.file("again")).unwrap();
        for quantization in [None, Some(serde_json::json!({"bits": 4}))] {
            fs::write(folder.file("again/config.json"), config.with_quantization(quantization.clone())).unwrap();
            let again = ModelConfig::read(folder.file("again")).unwrap().unwrap();
            assert_eq!((again.quantization(), again.architecture()), (quantization.as_ref(), config.architecture()));
        }
    }
    // What is read of it: the headers of its files, and the index.
    let of = |path: PathBuf| match (path.extension(), fs::read(&path)) {
        (Some(kind), Ok(bytes)) if kind == "safetensors" => limits::header_of(&bytes),
        (Some(kind), Ok(bytes)) if kind == "json" => bytes.len(),
        _ => 0,
    };
    let read = fs::read_dir(&folder.0).unwrap().map(|entry| of(entry.unwrap().path())).sum();
    let (file, most) = limits::memory_of(|| Checkpoint::open(&folder.0));
    assert!(most <= limits::allowed(read), "{most} bytes in use, of {read} bytes that were read");
    let file = file.ok()?;
    let modules = file.quantized();
    let groups = fused_groups(&modules, &architecture.unwrap_or_default(), |_| None).len();
    Some(read_everything(&file) + groups + known)
}

/// Mutants of headers, shards, indices, configs and calibration: refused or read, and never a panic.
/// `SCALED_GEMM_MUTANTS` says how many; a hundred thousand were run once.
#[test]
fn mutated_folders_never_panic() {
    let folder = Folder::new();
    let seed = model(&folder);
    let restore = || seed.iter().for_each(|(name, bytes)| fs::write(folder.file(name), bytes).unwrap());
    restore();
    let whole = read_folder(&folder).unwrap();
    const WORDS: [&str; 16] = [
        "model-00001-of-00002",
        "model-00002-of-00002",
        "weight_map",
        "../",
        "\\u0000",
        "F8_E4M3",
        "U8",
        "F32",
        "[1]",
        "[4,16]",
        "l.q_proj",
        "l.k_proj",
        "_scale",
        "{}",
        "1e400",
        "null",
    ];
    let mutants: usize = std::env::var("SCALED_GEMM_MUTANTS").ok().map_or(4000, |n| n.parse().unwrap());
    let mut random = Noise::new(11);
    let (mut opened, mut less) = (0, 0);
    for mutant in 0..mutants {
        let (name, bytes) = &seed[random.below(seed.len())];
        let mut bytes = bytes.clone();
        let is_text = name.ends_with("json");
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len().max(1));
            let [old, new] = [(); 2].map(|()| WORDS[random.below(WORDS.len())]);
            match random.below(6) {
                0 => bytes.truncate(at),
                1 => bytes[at..].iter_mut().take(4).for_each(|b| *b = random.bits() as u8),
                2 => bytes.insert(at, random.bits() as u8),
                _ if !is_text => bytes = exchange_word(&bytes, old, new, &mut random),
                _ => bytes = String::from_utf8_lossy(&bytes).replacen(old, new, 1).into_bytes(),
            }
            if bytes.is_empty() {
                break;
            }
        }
        fs::write(folder.file(name), &bytes).unwrap();
        let what = || format!("mutant {mutant} of {name}: {:?}", String::from_utf8_lossy(&bytes));
        let read = || limits::within_a_second(what, || read_folder(&folder));
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(None) => {}
            Ok(Some(good)) => {
                opened += 1;
                less += usize::from(good < whole);
            }
            Err(_) => panic!("mutant {mutant} of {name}: {:?}", String::from_utf8_lossy(&bytes)),
        }
        fs::write(folder.file(name), seed.iter().find(|(n, _)| n == name).map(|(_, b)| b).unwrap()).unwrap();
    }
    assert_eq!(read_folder(&folder), Some(whole));
    assert!(opened > mutants / 10 && less > mutants / 100, "{opened} opened, {less} damaged, of {mutants}");
}
