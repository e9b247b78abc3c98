//! Mutants of a model's files, read by the program itself: an answer or a refusal of one line, in a second and little memory.

#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::quantized::Model;
use common::{Folder, f32_tensor, good, model_folder, program};
use serde_json::json;

/// Longest that a run may take. It is asked again where the machine was busy.
const LONGEST: Duration = Duration::from_secs(1);
/// KiB of addresses that a run may have, with those of its threads' stacks: no header of a few KiB is worth more.
const ADDRESSES: &str = "1048576";

/// Words whose exchange makes files that are well-formed and wrong.
const WORDS: [&str; 24] = [
    "F8_E4M3",
    "F32",
    "U8",
    "BF16",
    "[1]",
    "[128,128]",
    "[]",
    "{}",
    "null",
    "true",
    "-1",
    "1e400",
    "18446744073709551615",
    "modelopt",
    "NVFP4",
    "MIXED_PRECISION",
    "quant_algo",
    "exclude_modules",
    "quantized_layers",
    "weight_scale_2",
    "m.0.mlp.down_proj",
    "lm_head",
    "re:(",
    "../x",
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len());
        let [old, new] = [(); 2].map(|()| WORDS[random.below(WORDS.len())]);
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.below(256) as u8),
            2 => bytes.iter_mut().skip(at).take(4).for_each(|b| *b = random.below(256) as u8),
            _ => {
                // Of a header too, whose length is mended.
                let places: Vec<_> =
                    bytes.windows(old.len()).enumerate().filter(|(_, w)| *w == old.as_bytes()).collect();
                let places: Vec<usize> = places.into_iter().map(|(at, _)| at).collect();
                let Some(at) = places.get(random.below(places.len())).copied() else { continue };
                let is_header = bytes.get(8) == Some(&b'{');
                bytes.splice(at..at + old.len(), new.bytes());
                if let Some(len) = bytes.get_mut(..8).filter(|_| is_header) {
                    let grown = u64::from_le_bytes((&*len).try_into().unwrap()) + new.len() as u64 - old.len() as u64;
                    len.copy_from_slice(&grown.to_le_bytes());
                }
            }
        }
    }
    bytes
}

fn run(args: &[&str]) -> Output {
    let script = format!("ulimit -v {ADDRESSES}; exec \"$0\" \"$@\"");
    let mut took = Duration::ZERO;
    for _ in 0..3 {
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(program()).args(args).args(["--device", "cpu"]);
        let started = Instant::now();
        let output = command.env("RAYON_NUM_THREADS", "2").output().unwrap();
        took = started.elapsed();
        if took <= LONGEST {
            return output;
        }
    }
    panic!("{args:?}: took {took:?}");
}

/// `info`, and both commands that write, as far as they read. `SCALED_GEMM_MUTANTS` says how many mutants there are.
#[test]
fn mutated_models_never_panic() {
    let model = Model::new("nvfp4", "modelopt");
    let plain = Folder::new();
    let names = ["m.0.self_attn.q_proj.weight", "m.0.mlp.down_proj.weight", "lm_head.weight"];
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [16, 128], seed)).collect();
    let config = json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 4});
    let input = plain.file("in");
    model_folder(&input, &tensors, Some(config));
    good(&["info", &input]);
    let (quantized, output) = (model.path(), plain.file("out"));
    let read = |path: String| fs::read(&path).map(|bytes| (path, bytes)).unwrap();
    let of_quantized = ["config.json", "hf_quant_config.json", "model.safetensors"];
    let of_plain = ["config.json", "model.safetensors"];
    let seeds: Vec<_> = of_quantized.map(|name| read(format!("{quantized}/{name}"))).into_iter().collect();
    let plain_seeds: Vec<_> = of_plain.map(|name| read(format!("{input}/{name}"))).into_iter().collect();
    let mutants: usize = std::env::var("SCALED_GEMM_MUTANTS").ok().map_or(240, |n| n.parse().unwrap());
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut good, mut refused) = (0, 0);
    for mutant in 0..mutants {
        let of_model = mutant % 3 != 0;
        let seeds = if of_model { &seeds } else { &plain_seeds };
        let (path, seed) = &seeds[random.below(seeds.len())];
        let bytes = mutated(seed, &mut random);
        fs::write(path, &bytes).unwrap();
        let dry = ["--dry-run", "-o", &output];
        let all: &[&[&str]] = match of_model {
            true => &[&["info", &quantized], &["dequantize", &quantized, "-o", &output]],
            false => &[&["info", &input], &[&["quantize", &input, "--recipe", "nvfp4"][..], &dry].concat()],
        };
        for args in all {
            let Output { status, stdout, stderr } = run(args);
            let said = String::from_utf8_lossy(&stderr);
            let what = || {
                format!("mutant {mutant} of {path}, {args:?}: {status}, {said}\n{:?}", String::from_utf8_lossy(&bytes))
            };
            assert!(matches!(status.code(), Some(0..=2)) && !said.contains("panicked"), "{}", what());
            assert!(!said.contains("report it"), "{}", what());
            // The text of a refusal is one line, whatever the names in it.
            if status.code() == Some(2) {
                assert!(said.lines().count() == 1 && stdout.is_empty(), "{}", what());
                refused += 1;
            } else {
                good += 1;
            }
            let _ = fs::remove_dir_all(&output);
        }
        fs::write(path, seed).unwrap();
    }
    assert!(good > mutants / 4 && refused > mutants / 10, "{good} answers and {refused} refusals of {mutants} mutants");
}
