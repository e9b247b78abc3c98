//! What the GPU benchmarks share: random device data, rotation past the L2 cache, the record's head and table.
#![allow(dead_code)]

use half::bf16;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{DType, Handle, time_calls};

#[path = "../../tests/common/mod.rs"]
pub mod testing;
pub use testing::Noise;

/// (n, k) of DeepSeek-V3, Llama-3-70B, Qwen3-30B-A3B's experts, Qwen3-32B.
pub const SHAPES: [(usize, usize); 17] = [
    (2112, 7168),
    (576, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
    (10240, 8192),
    (8192, 8192),
    (57344, 8192),
    (8192, 28672),
    (1536, 2048),
    (2048, 768),
    (10240, 5120),
    (5120, 8192),
    (51200, 5120),
    (5120, 25600),
];
/// The three of them that `SCALED_GEMM_SHAPES=quick` takes.
pub const QUICK: [(usize, usize); 3] = [(4096, 7168), (7168, 2048), (24576, 1536)];

/// Random normal numbers as `dtype`, `elements` of them: a block of four million, repeated.
pub fn random(handle: &Handle, seed: u64, elements: usize, dtype: DType) -> CudaSlice<u8> {
    let block = elements.min(4 << 20);
    let mut rng = Noise::new(seed);
    let values: Vec<f32> = (0..block).map(|_| rng.normal()).collect();
    let bytes: Vec<u8> = match dtype {
        DType::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_bits().to_le_bytes()).collect(),
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        other => panic!("no benchmark uses {other}"),
    };
    let total = elements * dtype.bytes();
    let mut out = handle.stream().alloc_zeros::<u8>(total).unwrap();
    let source = handle.stream().clone_htod(&bytes).unwrap();
    for start in (0..total).step_by(bytes.len()) {
        let len = bytes.len().min(total - start);
        handle.stream().memcpy_dtod(&source.slice(..len), &mut out.slice_mut(start..start + len)).unwrap();
    }
    out
}

/// Number of buffer sets to rotate over so that `bytes` a set together exceed the L2 cache three times.
pub fn rotation(handle: &Handle, bytes: usize) -> usize {
    (3 * handle.device().l2_bytes).div_ceil(bytes).clamp(2, 64)
}

/// Calls in one graph: about five milliseconds of work, at least two rounds of the rotation.
pub fn calls(sets: usize, microseconds: f64) -> usize {
    let wanted = (5000.0 / microseconds).ceil() as usize;
    wanted.clamp(2 * sets, 512).next_multiple_of(sets)
}

/// Median microseconds of the copy of `bytes` bytes to as many, cold: the roof for `2 * bytes` of traffic.
pub fn copy_time(handle: &Handle, bytes: usize) -> f64 {
    let sets = rotation(handle, 2 * bytes);
    let sources: Vec<_> = (0..sets).map(|i| random(handle, i as u64, bytes / 2, DType::Bf16)).collect();
    let mut targets: Vec<_> = (0..sets).map(|_| handle.stream().alloc_zeros::<u8>(bytes).unwrap()).collect();
    time_calls(handle, calls(sets, bytes as f64 / 2e6), 7, |i| {
        scaled_gemm::copy(handle, &sources[i % sets], &mut targets[i % sets])
    })
    .unwrap()
}

/// The head of a record: what was measured where.
pub fn head(handle: &Handle, what: &str) {
    let library = handle.library().unwrap();
    println!("# {what}");
    println!(
        "{}, {} SMs, L2 {} MiB; cuBLASLt {} ({})",
        handle.device().name,
        handle.device().sm_count,
        handle.device().l2_bytes >> 20,
        library.version_text,
        library.path.map_or("path unknown".into(), |p| p.display().to_string()),
    );
    for (label, variable) in [("commit", "SCALED_GEMM_COMMIT"), ("command", "SCALED_GEMM_COMMAND")] {
        if let Ok(value) = std::env::var(variable) {
            println!("{label}: {value}");
        }
    }
    println!(
        "kernels: {:?}; captured graphs, cold operands (rotated), random normal data, medians",
        handle.kernel_source()
    );
}

/// Runs `body` with a handle, or says why there is none; fails without one if `SCALED_GEMM_REQUIRE_GPU=1`.
pub fn main_with_gpu(body: impl FnOnce(&Handle)) {
    // `cargo test --benches` and `cargo bench` pass flags of libtest; `--test` means: run nothing long.
    if std::env::args().any(|a| a == "--test") {
        println!("skipped: benchmarks run under cargo bench");
        return;
    }
    if let Some(handle) = testing::handle() {
        body(&handle);
    }
}
