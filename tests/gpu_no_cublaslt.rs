//! A machine without cuBLASLt: casts, and products by our own kernels, within the f64 bound; what is the library's is refused, and says why.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/hazards.rs"]
mod hazards;

use common::gemm::*;
use common::*;
use hazards::alone_with;
use scaled_gemm::{
    Accumulation, Bf16Gemm, DType, Formulation, Fp8Format, GemmArgs, GemmDesc, GroupedGemmArgs, GroupedRows, Handle,
    MatMut, Operand, QuantMatrix, Scheme,
};

const E4M3: Fp8Format = Fp8Format::E4M3;

/// A handle that has no library though there is one.
fn bare() -> Option<Handle> {
    let handle = required(Handle::new(0))?;
    refused(handle.library(), &["cuBLASLt", "SCALED_GEMM_CUBLASLT is off", "install CUDA"]);
    Some(handle)
}

#[test]
fn our_own_products_need_none() {
    alone_with(&[("SCALED_GEMM_CUBLASLT", "off")], || {
        let Some(handle) = bare() else { return };
        if handle.device().compute_capability != (9, 0) {
            return println!("skipped: {} multiplies FP8 by cuBLASLt alone", handle.device());
        }
        let (mut rng, mut tally) = (Noise::new(811), Tally::default());
        use Scheme::{Fp8Group1x128 as Vec128, Fp8Group128x128 as Blk, Fp8Row as Row, Fp8Tensor as Tensor};
        for (a, b) in [
            (Vec128(E4M3), Blk(E4M3)),
            (Vec128(E4M3), Vec128(E4M3)),
            (Blk(E4M3), Vec128(E4M3)),
            (Vec128(Fp8Format::E5M2), Blk(E4M3)),
            (Row(E4M3), Row(E4M3)),
            (Tensor(E4M3), Tensor(E4M3)),
        ] {
            for shape in [[5, 136, 272], [100, 264, 1168]] {
                let ops = Operands::new(&handle, &mut rng, shape, (a, b));
                let extras = Extras::new(&handle, &mut rng, shape[0], shape[1], &[8]);
                for case in [Case::new(DType::Bf16), layer()] {
                    tally.check(&handle, &ops, &extras, &ops.sums(Accumulation::Precise), &case);
                }
            }
        }
        let x = tiled(&mut rng, 16, 1536);
        for b in [Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp4, Scheme::Mxfp8(E4M3), Blk(E4M3)] {
            let ops = PlainOperands::of(&handle, &x, DType::Bf16, 0, quantized(&tiled(&mut rng, 72, 1536), b));
            let extras = Extras::new(&handle, &mut rng, 16, 72, &[8]);
            tally.check(&handle, &ops, &extras, &ops.sums(Accumulation::Precise), &layer());
        }
        tally.finish("without cuBLASLt", 29, 29);
    });
}

#[test]
fn what_is_the_librarys_is_refused_with_the_reason() {
    alone_with(&[("SCALED_GEMM_CUBLASLT", "off")], || {
        let Some(handle) = bare() else { return };
        let of = |m| GemmDesc::new(m, 128, 256, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::Bf16);
        let words = ["dequantized-bf16", "cuBLASLt's, which is not here", "Handle::library"];
        refused(handle.plan(&of(65)), &words);
        let text = handle.plan(&of(8)).unwrap().explain();
        assert!(text.contains("no cuBLASLt") && text.contains("small-m"), "{text}");
        let record = handle.plan(&of(8)).unwrap().record().unwrap();
        assert_eq!(record.environment().cublaslt, None);
        assert_eq!(handle.plan(&of(8)).unwrap().formulation(), Formulation::SmallM);
        refused(Bf16Gemm::new(&handle, 16, 16, 64, 1).map(drop), &["cuBLASLt", "SCALED_GEMM_CUBLASLT is off"]);
    });
}

/// Two groups of rows, each as it is alone.
#[test]
fn groups_need_none() {
    alone_with(&[("SCALED_GEMM_CUBLASLT", "off")], || {
        let Some(handle) = bare() else { return };
        if handle.device().compute_capability != (9, 0) {
            return println!("skipped: {} has no kernels for groups", handle.device());
        }
        let (m, n, k) = (128, 128, 384);
        let mut rng = Noise::new(812);
        let mut operand =
            |rows, scheme| QuantMatrix::from_host(&handle, &quantized(&tiled(&mut rng, rows, k), scheme)).unwrap();
        let (a, b) = (operand(2 * m, Scheme::Fp8Group1x128(E4M3)), operand(2 * n, Scheme::Fp8Group128x128(E4M3)));
        let counts = handle.upload(&[m as i64; 2]).unwrap();
        let mut d = handle.alloc(2 * m * n * 4).unwrap();
        let rows = GroupedRows::Masked { slot_rows: m, counts: counts.view() };
        let to = MatMut::new(&mut d, DType::F32, 2 * m, n).unwrap();
        handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, 2, rows, to)).unwrap();
        let groups: Vec<f32> = handle.read(&d.view()).unwrap();
        let mut d = handle.alloc(2 * m * 2 * n * 4).unwrap();
        let to = MatMut::new(&mut d, DType::F32, 2 * m, 2 * n).unwrap();
        handle.scaled_gemm(GemmArgs::new(&a, &b, to).batch_invariant(true)).unwrap();
        let all: Vec<f32> = handle.read(&d.view()).unwrap();
        for (i, row) in groups.chunks(n).enumerate() {
            let alone = &all[i * 2 * n + i / m * n..][..n];
            assert!(row.iter().zip(alone).all(|(x, y)| x.to_bits() == y.to_bits()), "row {i}");
        }
    });
}
