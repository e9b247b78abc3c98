//! A small quantized model, of which the configs are changed.

use std::fs;

use serde_json::{Value, json};

use super::{Folder, assert_words, f32_tensor, good, model_folder, run_on};

pub const LAYERS: [&str; 4] = ["m.0.self_attn.o_proj", "m.0.mlp.down_proj", "m.1.self_attn.o_proj", "lm_head"];

/// A quantized model, of which one layer and the head are plain, and its two configs.
pub struct Model {
    pub folder: Folder,
    pub configs: [Option<Value>; 2],
}

impl Model {
    pub fn new(recipe: &str, dialect: &str) -> Self {
        let folder = Folder::new();
        let names = LAYERS.map(|name| format!("{name}.weight"));
        let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [128, 128], seed)).collect();
        let input = folder.file("in");
        model_folder(&input, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
        let model = Self { folder, configs: Default::default() };
        let args = ["quantize", &input, "-o", &model.path(), "--recipe", recipe, "--dialect", dialect];
        good(&[&args[..], &["--exclude", "m.1.self"]].concat());
        good(&["info", &model.path()]);
        let read = |name: &str| serde_json::from_slice(&fs::read(format!("{}/{name}", model.path())).ok()?).ok();
        let configs = [read("config.json"), read("hf_quant_config.json")];
        Self { configs, ..model }
    }

    pub fn path(&self) -> String {
        self.folder.file("q")
    }

    /// Writes both with these changes: of the `quantization_config`, and of the other file.
    pub fn write(&self, config: impl Fn(&mut Value), hf: impl Fn(&mut Value)) {
        let [mut first, mut second] = self.configs.clone();
        config(&mut first.as_mut().unwrap()["quantization_config"]);
        fs::write(format!("{}/config.json", self.path()), first.unwrap().to_string()).unwrap();
        if let Some(second) = &mut second {
            hf(second);
            fs::write(format!("{}/hf_quant_config.json", self.path()), second.to_string()).unwrap();
        }
    }

    /// What is wrong with such configs.
    pub fn wrong(&self, config: impl Fn(&mut Value), hf: impl Fn(&mut Value)) -> Vec<String> {
        self.write(config, hf);
        let text = run_on("cpu", &["info", &self.path(), "--json"]);
        let value: Value = serde_json::from_slice(&text.stdout).unwrap_or_else(|e| panic!("{e}: {text:?}"));
        let problems: Vec<String> =
            value["problems"].as_array().unwrap().iter().map(|p| p.as_str().unwrap().into()).collect();
        assert_eq!(text.status.code(), Some(i32::from(!problems.is_empty())), "{problems:?}");
        problems
    }

    /// One thing is wrong, in these words.
    pub fn one(&self, config: impl Fn(&mut Value), words: &[&str]) {
        let found = self.wrong(&config, |_| {});
        assert_eq!(found.len(), 1, "{found:?}");
        assert_words(&found[0], words);
    }
}
