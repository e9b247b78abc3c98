//! Proof by the code of others: a real language model goes from GGUF to a folder in BF16, through the `scaled-gemm` program, and
//! back into candle's tensors, or into the layers of mistralrs-quant. All on the CPU.
//!
//! Not a part of the crate that is published, and of no everyday build: three programs, each of which prints a table and fails
//! where a figure is not as it must be. `scripts/engines.sh` runs them.
//!
//! | program | question |
//! |---|---|
//! | `perplexity` | what do quantized weights cost, also as engines that fuse layers read them |
//! | `mistralrs` | does mistralrs-quant make the same numbers of our files, and we of its codes |
//! | `calibrate` | the amax of every layer's input for `--input-scales`, and what the program makes of it |

pub mod gguf;
pub mod llama;
pub mod options;
pub mod program;
pub mod record;
pub mod score;
pub mod text;
pub mod weights;

/// What can fail here fails with a sentence for whoever runs it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A sentence that ends the program, unless something holds.
///
/// # Errors
/// The sentence.
pub fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
