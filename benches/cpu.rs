//! CPU side: reference quantizers and the reference product. `cargo bench --bench cpu`

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ndarray::Array2;
use scaled_gemm::reference::{GemmInputs, HostOperand, dequantize, quantize, quantize_transposed, scaled_gemm};
use scaled_gemm::{BlockScaleRule, ErrorMath, ErrorMetric, Nvfp4Options, Nvfp4Recipe};
use scaled_gemm::{DType, Fp8Format, Recipe, Scheme};

/// Numbers without a pattern, the same on every machine.
fn matrix(rows: usize, cols: usize) -> Array2<f32> {
    let mut state = 1u32;
    Array2::from_shape_simple_fn((rows, cols), || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn quantizers(c: &mut Criterion) {
    let x = matrix(1024, 7168);
    let mut group = c.benchmark_group("quantize 1024x7168");
    group.throughput(Throughput::Elements(x.len() as u64));
    let blocks = [Scheme::Mxfp8(Fp8Format::E4M3), Scheme::Nvfp4, Scheme::Nvfp4Row];
    for scheme in Scheme::FP8[..4].iter().chain(&blocks) {
        let recipe = Recipe::new(*scheme);
        group.bench_function(BenchmarkId::from_parameter(scheme), |b| {
            b.iter(|| quantize(black_box(x.view()), DType::Bf16, recipe));
        });
    }
    let metric = ErrorMetric::Mse;
    for math in [ErrorMath::Strict, ErrorMath::Fast] {
        let block_scale = BlockScaleRule::FourOverSix { metric, math };
        let recipe = Nvfp4Recipe::tensor(Nvfp4Options { block_scale, ..Nvfp4Options::default() }).unwrap();
        group.bench_function(format!("nvfp4 4over6 {}", math.name()), |b| {
            b.iter(|| quantize(black_box(x.view()), DType::Bf16, recipe));
        });
    }
    let recipe = Recipe::new(Scheme::Fp8Group1x128(Fp8Format::E4M3));
    group.bench_function("transposed fp8-1x128:e4m3", |b| {
        b.iter(|| quantize_transposed(black_box(x.view()), DType::Bf16, recipe));
    });
    if let Ok(q) = quantize(x.view(), DType::Bf16, recipe) {
        group.bench_function("dequantize fp8-1x128:e4m3", |b| b.iter(|| dequantize(black_box(&q), DType::Bf16)));
    }
    group.finish();
}

fn products(c: &mut Criterion) {
    use Scheme::{Fp8Group1x128, Fp8Group128x128, Fp8Row, Fp8Tensor, Mxfp8, Nvfp4, Nvfp4Row};
    let e4m3 = Fp8Format::E4M3;
    let mut group = c.benchmark_group("gemm");
    group.sample_size(10);
    for (m, n, k) in [(1, 4096, 7168), (1024, 1024, 1024)] {
        let (a, b) = (matrix(m, k), matrix(n, k));
        group.throughput(Throughput::Elements((2 * m * n * k) as u64));
        for (sa, sb) in [
            (Fp8Tensor(e4m3), Fp8Tensor(e4m3)),
            (Fp8Row(e4m3), Fp8Row(e4m3)),
            (Fp8Group1x128(e4m3), Fp8Group128x128(e4m3)),
            (Mxfp8(e4m3), Mxfp8(e4m3)),
            (Nvfp4, Nvfp4),
            (Nvfp4Row, Nvfp4),
        ] {
            let operands =
                (quantize(a.view(), DType::F32, Recipe::new(sa)), quantize(b.view(), DType::F32, Recipe::new(sb)));
            let (Ok(qa), Ok(qb)) = operands else { continue };
            group.bench_function(format!("{m}x{n}x{k} {sa} x {sb}"), |bench| {
                bench.iter(|| scaled_gemm(black_box(&GemmInputs::new(&qa, &qb, DType::Bf16))));
            });
        }
        if let Ok(qb) = quantize(b.view(), DType::F32, Recipe::new(Nvfp4)) {
            let a = HostOperand::Plain(a.view(), DType::Bf16);
            group.bench_function(format!("{m}x{n}x{k} bf16 x nvfp4"), |bench| {
                bench.iter(|| scaled_gemm(black_box(&GemmInputs::new(a, &qb, DType::Bf16))));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, quantizers, products);
criterion_main!(benches);
