//! A layer of a published FP8 checkpoint: `weight` (F8_E4M3) with `weight_scale_inv` (F32, one for each 128x128 tile), as
//! DeepSeek-V3 stores it, read and multiplied with activations.
//!
//! Without arguments it makes such a file first, which goes away with the program. `_scale_inv` is the factor that multiplies the
//! codes. The scales lie in the file in row-major order; the GPU's padded order is made when the matrix is read. Runs
//! on a GPU of sm_90 if there is one, else on the CPU. Columns must be a multiple of 16, rows of 8.
//!
//!     cargo run --release --example load_deepseek_layer [FILE.safetensors TENSOR]

use std::path::Path;

use half::bf16;
use ndarray::Array2;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, Dtype};
use scaled_gemm::reference::{self, GemmInputs};
use scaled_gemm::{
    DType, Error, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GemmArgs, Handle, HostQuantMatrix, MatMut, QuantMatrix,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const NAME: &str = "model.layers.0.mlp.down_proj.weight";

/// A file like a published one: codes and scales, and no word about who made them.
fn write_layer(path: &Path) -> Outcome<()> {
    let (n, k) = (768, 1792);
    let recipe = Fp8Recipe::new(Fp8Granularity::Group128x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let weight = reference::quantize(noise(1, n, k, 0.02).view(), DType::Bf16, recipe)?;
    let [row_tiles, col_tiles] = weight.scheme().scale_grid(n, k);
    let scales: Vec<u8> = weight.logical_scales().iter().flat_map(|s| s.to_le_bytes()).collect();

    let mut layout = CheckpointLayout::new();
    layout.tensor(NAME, Dtype::F8_E4M3, &[n, k]);
    layout.tensor(format!("{NAME}_scale_inv"), Dtype::F32, &[row_tiles, col_tiles]);
    let file = layout.create(path, &[])?;
    file.write(NAME, weight.logical_codes())?;
    file.write(&format!("{NAME}_scale_inv"), &scales)?;
    Ok(file.finish()?)
}

/// `x Wᵀ` on the GPU.
fn multiply(handle: &Handle, x: &HostQuantMatrix, weight: &HostQuantMatrix) -> Outcome<Vec<f32>> {
    let (m, n) = (x.rows(), weight.rows());
    let (x, weight) = (QuantMatrix::from_host(handle, x)?, QuantMatrix::from_host(handle, weight)?);
    let mut y = handle.stream().alloc_zeros::<bf16>(m * n)?;
    handle.scaled_gemm(GemmArgs::new(&x, &weight, MatMut::new(&mut y, DType::Bf16, m, n)?))?;
    Ok(handle.stream().clone_dtoh(&y)?.iter().map(|v| v.to_f32()).collect())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [path, name] => run(Path::new(path), name),
        [] => {
            // A folder of our own, removed when it goes out of scope: nothing else is ever removed.
            let folder = tempfile::tempdir()?;
            let path = folder.path().join("layer.safetensors");
            write_layer(&path)?;
            run(&path, NAME)
        }
        _ => Err("usage: load_deepseek_layer [FILE.safetensors TENSOR]".into()),
    }
}

fn run(path: &Path, name: &str) -> Outcome<()> {
    let checkpoint = Checkpoint::open(path)?;
    let weight = checkpoint.quant_matrix(name)?;
    println!("{}: {name} is {} x {} {}", path.display(), weight.rows(), weight.cols(), weight.scheme());

    let recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let activations = noise(2, 8, weight.cols(), 1.0);
    let x = reference::quantize(activations.view(), DType::Bf16, recipe)?;
    let (device, y) = match Handle::new(0) {
        Ok(handle) => (handle.device().to_string(), multiply(&handle, &x, &weight)?),
        Err(error @ (Error::NoGpu { .. } | Error::Library { .. })) => {
            println!("{error}\non the CPU, then:");
            let y = reference::scaled_gemm(&GemmInputs::new(&x, &weight, DType::Bf16))?;
            ("the CPU".to_string(), y.into_iter().collect())
        }
        Err(error) => return Err(error.into()),
    };

    // The weights themselves are quantized already: what is lost here is the activations' precision.
    let exact = activations.dot(&reference::dequantize(&weight, DType::F32).t());
    let exact: Vec<f32> = exact.into_iter().collect();
    println!("8 tokens on {device}: {:.1} dB signal to noise against FP32 activations", reference::sqnr_db(&exact, &y));
    Ok(())
}

/// Uniform BF16 numbers in (-scale, scale), the same on every machine.
fn noise(seed: u64, rows: usize, cols: usize, scale: f32) -> Array2<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    Array2::from_shape_simple_fn((rows, cols), || bf16::from_f32(next() * scale).to_f32())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_file_is_still_there() -> Outcome<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("mine.safetensors");
        write_layer(&path)?;
        let before = std::fs::read(&path)?;
        run(&path, NAME)?;
        assert_eq!(std::fs::read(&path)?, before);
        Ok(())
    }
}
