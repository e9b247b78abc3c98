//! What suites of several handles and GPUs run of `sm90`: a quantizer and a product that it computes, and one of groups.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use scaled_gemm::{
    DType, DeviceBuffer, Formulation, Fp8Format, GemmPlan, GroupedGemmArgs, GroupedRows, Handle, KernelFamily, MatMut,
    MatRef, QuantMatrix, QuantizeTo, Recipe, Result, Scheme,
};

use crate::common::gemm::*;
use crate::common::*;

const E4M3: Fp8Format = Fp8Format::E4M3;
const VEC: Scheme = Scheme::Fp8Group1x128(E4M3);
const BLK: Scheme = Scheme::Fp8Group128x128(E4M3);
const ROWS: (Scheme, Scheme) = (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3));
const TENSORS: (Scheme, Scheme) = (Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3));

const SLOT: usize = 68;
const COUNTS: [i64; 4] = [5, 0, 68, 33];
const N: usize = 256;

/// Operands of both products on one handle's GPU.
pub struct Sm90Work {
    x: DeviceBuffer,
    ops: Operands,
    extras: Extras,
    case: Case,
    plan: GemmPlan,
    output: Output,
    pub a: QuantMatrix,
    pub b: QuantMatrix,
    pub counts: DeviceBuffer,
    pub d: DeviceBuffer,
    poison: Vec<u8>,
    pub want: (Stored, Vec<u8>),
}

impl Sm90Work {
    /// The work of this number, and what it gives when nothing runs beside it. `None`, with the reason, on other GPUs.
    pub fn new(handle: &Handle, number: usize) -> Option<Self> {
        if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
            println!("skipped: sm90 is not for {}", handle.device());
            return None;
        }
        let mut rng = Noise::new(700 + number as u64);
        let [m, n, k] = [[131, 520, 1040], [300, 264, 656], [64, 1032, 2064]][number % 3];
        let pair = [(VEC, BLK), ROWS, (VEC, VEC), TENSORS][number % 4];
        let x = tiled(&mut rng, m, k);
        let ops = Operands::of(handle, quantized(&x, pair.0), quantized(&tiled(&mut rng, n, k), pair.1));
        let case = [layer(), Case { gap: 8, ..Case::new(DType::Bf16) }][number % 2];
        let extras = Extras::new(handle, &mut rng, m, n, &[case.gap]);
        let plan = plan(handle, &case.desc(&ops), Formulation::Sm90);
        let output = Output::new(handle, &ops, &extras, &case);
        let grouped = [(VEC, BLK), ROWS, TENSORS][number % 3];
        let rows = SLOT * COUNTS.len();
        let [a, b] = [(rows, grouped.0), (COUNTS.len() * N, grouped.1)].map(|(rows, scheme)| {
            QuantMatrix::from_host(handle, &quantized(&tiled(&mut rng, rows, 400), scheme)).unwrap()
        });
        let poison = vec![0xFF; rows * N * 2];
        let mut work = Self {
            x: handle.upload(&bytes_of(DType::F32, x.iter())).unwrap(),
            counts: handle.upload(&COUNTS).unwrap(),
            d: handle.upload(&poison).unwrap(),
            want: (Stored { bytes: Vec::new(), amax: 0 }, Vec::new()),
            ops,
            extras,
            case,
            plan,
            output,
            a,
            b,
            poison,
        };
        work.reset(handle);
        work.launch(handle).unwrap();
        work.want = work.read(handle, "alone");
        let rows = work.want.1.chunks(2 * N).filter(|row| row.iter().any(|byte| *byte != 0xFF)).count();
        assert_eq!(rows as i64, COUNTS.iter().sum::<i64>(), "rows of groups that were stored");
        Some(work)
    }

    /// Both D hold nothing.
    pub fn reset(&mut self, handle: &Handle) {
        self.output.reset(handle);
        handle.write(&mut self.d.view_mut(), &self.poison).unwrap();
    }

    /// Enqueues the quantizer, which must not change A, and both products.
    pub fn launch(&mut self, handle: &Handle) -> Result<()> {
        let Self { x, ops, extras, case, plan, output, .. } = self;
        let recipe = Recipe::new(ops.a.scheme());
        let x = MatRef::new(&*x, DType::F32, ops.a.rows(), ops.a.cols())?;
        handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut ops.a))?;
        plan.execute(handle, output.args(&*ops, extras, case))?;
        let Self { a, b, counts, d, .. } = self;
        Self::grouped(handle, a, b, counts, d)
    }

    pub fn grouped(
        handle: &Handle,
        a: &QuantMatrix,
        b: &QuantMatrix,
        counts: &DeviceBuffer,
        d: &mut DeviceBuffer,
    ) -> Result<()> {
        let rows = GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
        let d = MatMut::new(d, DType::Bf16, a.rows(), N)?;
        handle.grouped_gemm(GroupedGemmArgs::new(a, b, COUNTS.len(), rows, d))
    }

    pub fn read(&self, handle: &Handle, words: &str) -> (Stored, Vec<u8>) {
        (self.output.read(handle, words), handle.read_bytes(&self.d.view()).unwrap())
    }

    /// Panics unless both D are what they were alone.
    pub fn check(&self, handle: &Handle, words: &str) {
        let (whole, groups) = self.read(handle, words);
        assert!(whole == self.want.0, "{words}\n{}", self.plan.explain());
        assert!(groups == self.want.1, "{words}: groups");
    }
}
