//! `config.json`, a file of calibration and names of modules, parted by bytes that no UTF-8 has.
#![no_main]

use std::cell::OnceCell;
use std::fs;

use libfuzzer_sys::fuzz_target;
use scaled_gemm::checkpoint::Dialect;
use scaled_gemm::model_folder::{
    InputScales, ModelConfig, QuantizationConfig, default_dialect, fused_groups, left_alone,
};
use scaled_gemm::{CodeRounding, Recipe};
use scaled_gemm_fuzz::limits::Limits;
use scaled_gemm_fuzz::scratch::Scratch;

/// A tree of JSON takes what it takes; patterns have a limit of their own.
const TIMES: usize = 64;
const CONSTANT: usize = 32 << 20;

thread_local! {
    static SCRATCH: OnceCell<Scratch> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    SCRATCH.with(|scratch| {
        let scratch = scratch.get_or_init(Scratch::new);
        scratch.clear();
        let mut parts = bytes.split(|b| *b == 0xFF);
        let [config, amax, names] = [(); 3].map(|()| parts.next().unwrap_or_default());
        fs::write(scratch.case().join("config.json"), config).unwrap();
        fs::write(scratch.case().join("amax.json"), amax).unwrap();
        let names = String::from_utf8_lossy(names);
        let modules: Vec<&str> = names.lines().collect();
        let limits = Limits::begin();
        read(scratch, &modules);
        limits.check("config", TIMES * bytes.len() + CONSTANT);
        scratch.check_written();
    });
});

fn read(scratch: &Scratch, modules: &[&str]) {
    if let Ok(scales) = InputScales::read(scratch.case().join("amax.json")) {
        for module in scales.modules() {
            assert!(scales.amax(module).is_some_and(|amax| amax.is_finite() && amax > 0.0), "{module:?}");
        }
    }
    let config = match ModelConfig::read(scratch.case()) {
        Ok(config) => config.unwrap(),
        Err(error) => return assert!(!error.to_string().contains('\u{1b}'), "{error:?}"),
    };
    let kept: Vec<String> = modules.iter().filter(|m| config.ignores(m)).map(|m| m.to_string()).collect();
    for module in modules {
        let _ = left_alone(module);
    }
    for group in fused_groups(modules, config.architecture(), |module| module.split('.').next().map(String::from)) {
        assert!(group.len() > 1 && group.is_sorted());
    }
    // What is written is read again, and means the same.
    fs::write(scratch.case().join("config.json"), config.with_quantization(None)).unwrap();
    let again = ModelConfig::read(scratch.case()).unwrap().unwrap();
    assert_eq!((again.architecture(), again.quantization()), (config.architecture(), None));
    assert!(modules.iter().all(|module| !again.ignores(module)));
    for recipe in Recipe::all(CodeRounding::Nearest) {
        for dialect in [default_dialect(recipe), Dialect::ModelOpt] {
            let Ok(quantization) = QuantizationConfig::new(dialect, recipe, false) else { continue };
            let Some(value) = quantization.value(&kept) else { continue };
            fs::write(scratch.case().join("config.json"), config.with_quantization(Some(value))).unwrap();
            let again = ModelConfig::read(scratch.case()).unwrap().unwrap();
            let lost = kept.iter().find(|module| !again.ignores(module));
            assert!(lost.is_none() || lost.is_some_and(|m| m.starts_with("re:") || m.ends_with('*')), "{lost:?}");
            return;
        }
    }
}
