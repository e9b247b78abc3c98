//! What the GPU suites share: the handle (or the reason to skip), random data, device buffers, shapes, comparisons.
#![allow(dead_code)]

pub mod gemm;

use half::{bf16, f16};
use ndarray::Array2;
pub use scaled_gemm::codec::round_to;
use scaled_gemm::cudarc::driver::CudaSlice;
pub use scaled_gemm::reference::Noise;
use scaled_gemm::{
    BorrowsOutliveGraph, CapturedGraph, DType, Error, Fp8Format, GroupedGemmDesc, Handle, HostQuantMatrix,
    KernelFamily, QuantMatrix, Result, Scheme, Timing,
};

/// A handle on GPU 0, with cuBLASLt. Without one of both: prints why and gives `None`, or panics if `SCALED_GEMM_REQUIRE_GPU=1`.
/// `SCALED_GEMM_TEST_BARE=1`: also without cuBLASLt, for tests of our own kernels where it cannot be (`scripts/emulate.sh`).
pub fn handle() -> Option<Handle> {
    let bare = std::env::var("SCALED_GEMM_TEST_BARE").is_ok_and(|v| v == "1");
    required(Handle::new(0).and_then(|handle| if bare { Ok(handle) } else { handle.library().map(|_| handle) }))
}

/// A handle that was asked for, likewise.
pub fn required(handle: Result<Handle>) -> Option<Handle> {
    match handle {
        Ok(handle) => Some(handle),
        Err(error @ (Error::NoGpu { .. } | Error::Library { .. })) => {
            let required = std::env::var("SCALED_GEMM_REQUIRE_GPU").is_ok_and(|v| v == "1");
            assert!(!required, "SCALED_GEMM_REQUIRE_GPU=1 and {error}");
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A handle on a GPU that runs these kernels, likewise: another GPU is a reason to skip.
pub fn handle_with(family: KernelFamily) -> Option<Handle> {
    let handle = handle()?;
    if !family.runs_on(handle.device().compute_capability) {
        println!("skipped: the {family} kernels are not for {}", handle.device());
        return None;
    }
    Some(handle)
}

/// Whether cuBLASLt has a product of groups of its own here that is not known to err; else that it is refused in words, and a reason to skip is printed; or panics if `SCALED_GEMM_REQUIRE_GROUPED=1`.
pub fn has_cublaslts_groups(handle: &Handle) -> bool {
    let tensor = Scheme::Fp8Tensor(Fp8Format::E4M3);
    let desc = GroupedGemmDesc::contiguous(5, 256, 128, 128, tensor, tensor, DType::Bf16).with_by_cublaslt(true);
    match handle.plan_grouped(&desc) {
        Ok(plan) => {
            let text = plan.explain();
            assert!(text.contains("cuBLASLt's own product of groups") && text.contains("asked for"), "{text}");
            true
        }
        Err(error) => {
            let text = error.to_string();
            let reasons = ["has no grouped products", "alone (documentation)", "does not call them"];
            let reasons = reasons.iter().any(|reason| text.contains(reason)) || matches!(error, Error::Library { .. });
            assert!(reasons, "{text}");
            let required = std::env::var("SCALED_GEMM_REQUIRE_GROUPED").is_ok_and(|v| v == "1");
            assert!(!required, "SCALED_GEMM_REQUIRE_GROUPED=1 and {text}");
            println!("skipped: {text}");
            false
        }
    }
}

/// Whether so many GiB of device memory are free; else a reason to skip is printed.
pub fn has_free(handle: &Handle, gib: usize) -> bool {
    let free = handle.stream().context().mem_get_info().unwrap().0;
    if free < gib << 30 {
        println!("skipped: {free} bytes of device memory are free, {gib} GiB are wanted");
    }
    free >= gib << 30
}

/// m (or rows), n, k of the issue: odd, tiny, ragged.
pub const ROWS: [usize; 4] = [1, 3, 17, 130];
pub const N: [usize; 3] = [8, 520, 2112];
pub const K: [usize; 3] = [16, 144, 576];

/// Shapes of decode, m, n and k: every n with every k that is a multiple of `multiple`, m up to `most` in turn, four of them where the f64 bound takes no time.
pub fn decode_shapes(most: usize, multiple: usize) -> impl Iterator<Item = [usize; 3]> {
    let all = [8usize, 72, 2112, 4104].into_iter().flat_map(|n| [16usize, 144, 1536, 18944].map(|k| (n, k)));
    all.filter(move |(_, k)| k.is_multiple_of(multiple)).enumerate().flat_map(move |(i, (n, k))| {
        let most = if n * k > 1 << 25 { 8 } else { most };
        let ms = [1, 64, 16, 33, 5, 17, 48, 8, 32, 9, 63].into_iter().filter(move |m| *m <= most);
        ms.cycle().skip(3 * i).take(if n * k > 1 << 21 { 1 } else { 4 }).map(move |m| [m, n, k])
    })
}

/// Of a thousand groups in turn: a ninth with one row or a few, some with more than a tile; the first and the last; those at the ends of rounds of 32; none.
pub fn counts_of_a_thousand(turn: usize) -> Vec<i64> {
    let count = |g: usize| match turn {
        0 if g % 9 == 4 => [1, 1, 3, 130, 1][g / 9 % 5],
        1 if g == 0 => 1,
        1 if g == 999 => 200,
        2 if g % 32 == 31 || g.is_multiple_of(32) => 1,
        _ => 0,
    };
    (0..1000).map(count).collect()
}

/// Normal data whose 128-wide groups and rows differ by orders of magnitude, so that no wrong scale can pass.
pub fn spread(rng: &mut Noise, rows: usize, cols: usize, dtype: DType) -> Array2<f32> {
    let magnitude = |rng: &mut Noise| 10f32.powf(rng.uniform() * 3.0 - 1.5);
    let by_row: Vec<f32> = (0..rows).map(|_| magnitude(rng)).collect();
    let by_group: Vec<f32> = (0..cols.div_ceil(128)).map(|_| magnitude(rng)).collect();
    Array2::from_shape_fn((rows, cols), |(i, j)| round_to(dtype, rng.normal() * by_row[i] * by_group[j / 128]))
}

/// The bytes of `values` as `dtype`, which they must already be rounded to.
pub fn bytes_of<'a>(dtype: DType, values: impl IntoIterator<Item = &'a f32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for v in values {
        match dtype {
            DType::Bf16 => bytes.extend(bf16::from_f32(*v).to_bits().to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f32(*v).to_bits().to_le_bytes()),
            DType::F32 => bytes.extend(v.to_bits().to_le_bytes()),
            other => panic!("{other}"),
        }
    }
    bytes
}

/// The values of bytes of type `dtype`.
pub fn values_of(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::Bf16 => bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        DType::F16 => bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        DType::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::E4M3 => bytes.iter().map(|b| scaled_gemm::codec::decode(scaled_gemm::Fp8Format::E4M3, *b)).collect(),
        other => panic!("{other}"),
    }
}

/// A device buffer of these bytes.
pub fn upload(handle: &Handle, bytes: &[u8]) -> CudaSlice<u8> {
    let bytes = if bytes.is_empty() { &[0] } else { bytes };
    handle.stream().clone_htod(bytes).unwrap()
}

/// A device matrix of `x` as `dtype`, with rows `stride` elements apart and NaN between them.
pub fn upload_strided(handle: &Handle, x: &Array2<f32>, dtype: DType, stride: usize, offset: usize) -> CudaSlice<u8> {
    let mut values = vec![f32::NAN; offset];
    for row in x.rows() {
        values.extend(row.iter());
        values.resize(values.len() + stride - x.ncols(), f32::NAN);
    }
    upload(handle, &bytes_of(dtype, &values))
}

/// A device buffer of `len` bytes that no correct output looks like: NaN in every type.
pub fn poisoned(handle: &Handle, len: usize) -> CudaSlice<u8> {
    upload(handle, &vec![0xFF; len])
}

/// A quantized matrix whose codes and scales of both kinds, padding included, are 0xFF bytes.
pub fn poisoned_matrix(handle: &Handle, scheme: Scheme, rows: usize, cols: usize) -> QuantMatrix {
    let buffer = |bytes: usize| (bytes > 0).then(|| handle.upload(&vec![0xFFu8; bytes]).unwrap());
    let codes = handle.upload(&vec![0xFFu8; scheme.code_bytes(rows, cols)]).unwrap();
    let scales = buffer(scheme.scale_len(rows, cols) * 4);
    let block_scales = buffer(scheme.block_scale_len(rows, cols));
    QuantMatrix::from_parts(scheme, rows, cols, codes, scales, block_scales).unwrap()
}

/// Times work on cudarc slices too. Only where nothing that the work uses is dropped or replaced before the timing ends.
pub fn borrowing(timing: Timing) -> Timing {
    // SAFETY: tests and benches hold their operands in locals outside of what they time.
    timing.borrowing(unsafe { BorrowsOutliveGraph::promise() })
}

/// Captures work on cudarc slices too. Only for operands that live to the end of the test.
pub fn capture(handle: &Handle, enqueue: impl FnOnce() -> Result<()>) -> Result<CapturedGraph> {
    // SAFETY: operands and graph are locals of one test, which launches the graph on one stream and waits before they go.
    handle.capture_borrowing(unsafe { BorrowsOutliveGraph::promise() }, enqueue)
}

/// The same beside tests that load kernels.
pub fn capture_among_others(handle: &Handle, mut enqueue: impl FnMut() -> Result<()>) -> Result<CapturedGraph> {
    again_if_broken(|| capture(handle, &mut enqueue))
}

/// The same of work on memory of this crate alone.
pub fn capture_owned(handle: &Handle, mut enqueue: impl FnMut() -> Result<()>) -> Result<CapturedGraph> {
    again_if_broken(|| handle.capture(&mut enqueue))
}

/// The driver synchronizes the context where another thread's test loads kernels, ours or its own, which breaks captures
/// (`Handle::capture` says so): then once more.
fn again_if_broken(mut capture: impl FnMut() -> Result<CapturedGraph>) -> Result<CapturedGraph> {
    for _ in 0..4 {
        match capture() {
            Err(Error::Driver { reason, .. }) if reason.contains("STREAM_CAPTURE_INVALIDATED") => {
                println!("a capture was broken by another thread: {reason}");
            }
            done => return done,
        }
    }
    capture()
}

/// Panics with the first difference, if codes or scales differ in any bit, padding included.
///
/// `HostQuantMatrix` clears padding: what a kernel left there, only [`assert_device_bits`] sees.
pub fn assert_same_bits(got: &HostQuantMatrix, want: &HostQuantMatrix, context: &str) {
    assert_eq!((got.scheme(), got.rows(), got.cols()), (want.scheme(), want.rows(), want.cols()), "{context}");
    assert_eq!(got.basis(), want.basis(), "{context}");
    assert_bits(got.codes(), got.scales(), got.block_scales(), want, context);
}

/// Panics with the first difference, if a byte of the device matrix, padding included, is not that of the host matrix.
pub fn assert_device_bits(handle: &Handle, got: &QuantMatrix, want: &HostQuantMatrix, context: &str) {
    assert_eq!((got.scheme(), got.rows(), got.cols()), (want.scheme(), want.rows(), want.cols()), "{context}");
    assert_eq!(got.basis(), want.basis(), "{context}");
    let codes = handle.read_bytes(&got.codes()).unwrap();
    let scales = values_of(DType::F32, &handle.read_bytes(&got.scales()).unwrap());
    let block_scales = handle.read_bytes(&got.block_scales()).unwrap();
    // Empty buffers may be one element long on the device.
    assert_bits(&codes[..want.codes().len()], &scales[..want.scales().len()], &block_scales, want, context);
}

fn assert_bits(codes: &[u8], scales: &[f32], block_scales: &[u8], want: &HostQuantMatrix, context: &str) {
    let (rows, cols) = (want.rows(), want.cols());
    let first = |a: &[u8], b: &[u8]| (a != b).then(|| (0..b.len()).find(|i| a[*i] != b[*i])).flatten();
    assert_eq!(codes.len(), want.codes().len(), "{context}");
    if let Some(at) = first(codes, want.codes()) {
        let row_bytes = cols * want.scheme().spec().code_bits / 8;
        let (got, want) = (codes[at], want.codes()[at]);
        panic!("{context}: code byte {} of row {} is {got:#04x}, must be {want:#04x}", at % row_bytes, at / row_bytes);
    }
    assert_eq!(block_scales.len(), want.block_scales().len(), "{context}");
    if let Some(at) = first(block_scales, want.block_scales()) {
        let [_, blocks] = want.scheme().block_grid(rows, cols);
        // The tiled order read backwards.
        let (tile, inside) = (at / 512, at % 512);
        let row = tile / blocks.div_ceil(4) * 128 + inside % 16 / 4 * 32 + inside / 16;
        let block = tile % blocks.div_ceil(4) * 4 + inside % 4;
        let (got, want) = (block_scales[at], want.block_scales()[at]);
        panic!(
            "{context}: block scale ({row}, {block}) of {rows} x {blocks} is {got:#04x}, must be {want:#04x}; at {at}"
        );
    }
    assert_eq!(scales.len(), want.scales().len(), "{context}");
    // The payload of a computed NaN is the device's own.
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    if let Some(at) = (0..scales.len()).find(|i| !same(scales[*i], want.scales()[*i])) {
        panic!("{context}: scale {at} is {:e}, must be {:e}", scales[at], want.scales()[at]);
    }
}

/// Panics with the first difference in bits; any NaN equals any NaN.
pub fn assert_same_values(got: &[f32], want: &[f32], cols: usize, context: &str) {
    assert_eq!(got.len(), want.len(), "{context}");
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    if let Some(at) = (0..want.len()).find(|i| !same(got[*i], want[*i])) {
        panic!("{context}: ({}, {}) is {:e}, must be {:e}", at / cols, at % cols, got[at], want[at]);
    }
}
