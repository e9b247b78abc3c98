//! Operands of a call in one allocation, each at the smallest alignment that is asked of it, 0xFF before and behind, which is NaN in every type that has one: what is
//! read beyond an operand shows in the result, and what is written beyond D shows in the rest.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use std::ops::Range;
use std::sync::Arc;

use ndarray::ArrayView2;
use scaled_gemm::cudarc::driver::{CudaSlice, DevicePtr};
use scaled_gemm::reference::HostOperand;
use scaled_gemm::{
    CodeOrder, DType, DeviceBuffer, Formulation, GemmArgs, GemmPlan, Handle, HostQuantMatrix, KeptWeights, MatMut,
    MatRef, OutAmax, QuantMatrix, Scheme, VecRef,
};

use crate::common::gemm::*;
use crate::common::*;

/// Bytes between two operands, at the least: more than any kernel copies at once along a row.
const GUARD: usize = 512;

/// One allocation for all operands of a call.
pub struct Arena {
    memory: Arc<CudaSlice<u8>>,
    base: u64,
    whole: DeviceBuffer,
    placed: Vec<Range<usize>>,
}

/// What the arena holds before a call.
pub struct Before(Vec<u8>);

impl Arena {
    pub fn new(handle: &Handle, bytes: usize) -> Self {
        let memory = Arc::new(poisoned(handle, bytes));
        let base = memory.device_ptr(handle.stream()).0;
        assert!(base.is_multiple_of(256), "an allocation at {base:#x}");
        let whole = Self::part(handle, &memory, base, 0..bytes);
        Self { memory, base, whole, placed: Vec::new() }
    }

    fn part(handle: &Handle, memory: &Arc<CudaSlice<u8>>, base: u64, range: Range<usize>) -> DeviceBuffer {
        assert!(range.end <= memory.len());
        let (address, owner) = (base + range.start as u64, memory.clone());
        // SAFETY: the bytes are a part of `memory`, which the buffer holds, and which is freed on its stream; all work on it is enqueued on that stream.
        unsafe { DeviceBuffer::from_raw(handle.stream(), address, range.len(), owner) }.unwrap()
    }

    /// These bytes behind what was placed before, at a multiple of `alignment` that is none of twice that.
    pub fn place(&mut self, handle: &Handle, bytes: &[u8], alignment: usize) -> DeviceBuffer {
        let end = self.placed.last().map_or(0, |last| last.end);
        let at = (end + GUARD).next_multiple_of(2 * alignment) + alignment;
        let range = at..at + bytes.len();
        assert!(range.end + GUARD <= self.memory.len(), "an arena of {} bytes is too small", self.memory.len());
        let mut buffer = Self::part(handle, &self.memory, self.base, range.clone());
        handle.write(&mut buffer.view_mut(), bytes).unwrap();
        self.placed.push(range);
        buffer
    }

    /// Where it begins on the device.
    pub fn address(&self) -> u64 {
        self.base
    }

    /// Where the last operand lies in the arena.
    pub fn last(&self) -> Range<usize> {
        self.placed.last().unwrap().clone()
    }

    /// Rows `stride` elements apart, NaN between them, up to the end of the last one.
    pub fn rows(
        &mut self,
        handle: &Handle,
        x: ArrayView2<'_, f32>,
        dtype: DType,
        stride: usize,
        alignment: usize,
    ) -> DeviceBuffer {
        let mut values = Vec::new();
        for (i, row) in x.rows().into_iter().enumerate() {
            values.resize(i * stride, f32::NAN);
            values.extend(row.iter());
        }
        self.place(handle, &bytes_of(dtype, &values), alignment)
    }

    /// Numbers of groups.
    pub fn numbers(&mut self, handle: &Handle, numbers: &[i64]) -> DeviceBuffer {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.place(handle, &bytes, 8)
    }

    /// Codes, scales and block scales, each between guards.
    pub fn matrix(&mut self, handle: &Handle, host: &HostQuantMatrix) -> QuantMatrix {
        let scales = bytes_of(DType::F32, host.scales());
        let parts = [host.codes(), &scales, host.block_scales()];
        self.matrix_of(handle, host.scheme(), [host.rows(), host.cols()], parts).assume_basis(host.basis())
    }

    /// A target of 0xFF bytes, padding included, and where its codes and scales lie.
    pub fn target(&mut self, handle: &Handle, scheme: Scheme, [m, n]: [usize; 2]) -> (QuantMatrix, Vec<Range<usize>>) {
        let full = |bytes: usize| vec![0xFF; bytes];
        let parts = [scheme.code_bytes(m, n), scheme.scale_len(m, n) * 4, scheme.block_scale_len(m, n)].map(full);
        let before = self.placed.len();
        let target = self.matrix_of(handle, scheme, [m, n], parts.each_ref().map(|part| &part[..]));
        (target, self.placed[before..].to_vec())
    }

    fn matrix_of(
        &mut self,
        handle: &Handle,
        scheme: Scheme,
        [rows, cols]: [usize; 2],
        parts: [&[u8]; 3],
    ) -> QuantMatrix {
        let [codes, scales, block_scales] = parts.map(|part| (!part.is_empty()).then(|| self.place(handle, part, 16)));
        QuantMatrix::from_parts(scheme, rows, cols, codes.unwrap(), scales, block_scales).unwrap()
    }

    /// Everything is in its place.
    pub fn ready(&self, handle: &Handle) -> Before {
        Before(self.read(handle, "before the call"))
    }

    /// All bytes. Panics if one between operands is no longer 0xFF.
    pub fn read(&self, handle: &Handle, words: &str) -> Vec<u8> {
        let all = handle.read_bytes(&self.whole.view()).unwrap();
        let mut from = 0;
        for (i, range) in self.placed.iter().cloned().chain(std::iter::once(all.len()..all.len())).enumerate() {
            let wrong = all[from..range.start].iter().position(|byte| *byte != 0xFF);
            assert_eq!(
                wrong, None,
                "written before operand {i} of the arena, and how far behind the one before it; {words}"
            );
            from = range.end;
        }
        all
    }

    /// All bytes behind a call. Panics if one changed elsewhere than in these places.
    pub fn read_behind(&self, handle: &Handle, before: &Before, may: &[Range<usize>], words: &str) -> Vec<u8> {
        let after = self.read(handle, words);
        let mut want = before.0.clone();
        may.iter().for_each(|range| want[range.clone()].copy_from_slice(&after[range.clone()]));
        if let Some(at) = (0..want.len()).find(|at| after[*at] != want[*at]) {
            let operand = self.placed.iter().position(|range| range.contains(&at));
            panic!("byte {at} of the arena, of operand {operand:?} in the order of places, was changed; {words}");
        }
        after
    }
}

/// Where rows of so many bytes lie, `pitch` bytes apart, the first at `at`.
pub fn places_of_rows(at: usize, rows: usize, row: usize, pitch: usize) -> Vec<Range<usize>> {
    (0..rows).map(|i| at + i * pitch..at + i * pitch + row).collect()
}

/// The bytes of these places, one behind the other.
pub fn gathered_bytes(all: &[u8], places: &[Range<usize>]) -> Vec<u8> {
    places.iter().flat_map(|range| all[range.clone()].iter().copied()).collect()
}

/// The bits of this plan's product with operands that lie in memory of their own, and the same with all of them in an arena.
pub fn check_guarded(handle: &Handle, plan: &mut GemmPlan, ops: &impl Product, extras: &Extras, case: &Case) {
    let want = execute(handle, plan, ops, extras, case);
    assert!(case.out != DType::E4M3 && case.amax == OutAmax::Ignore, "only for what kernels store themselves");
    let ([m, n, k], desc, words) = (ops.shape(), *plan.desc(), plan.explain());
    assert_eq!(desc.kept, KeptWeights::Nothing, "{words}");
    // Two bytes for each element of A and B with its scales, padded to whole tiles, eight for each of D and the residual.
    let mut arena = Arena::new(handle, 2 * (m + n + 256) * (k + 256) + 8 * (m + 1) * (n + 64) + (64 << 10));
    // Kernels of few rows store single numbers.
    let aligned = if plan.formulation() == Formulation::SmallM { case.out.bytes() } else { 16 };
    let (stride, size) = (n + case.gap, case.out.bytes());
    let mut d = match case.beta {
        Some(_) => arena.rows(handle, extras.old.view(), case.out, stride, aligned),
        None => arena.place(handle, &vec![0xFF; ((m - 1) * stride + n) * size], aligned),
    };
    let places = places_of_rows(arena.last().start, m, n * size, stride * size);
    let quantized = ops.host_a().quantized().map(|a| arena.matrix(handle, a));
    let plain = match ops.host_a() {
        HostOperand::Plain(x, dtype) => Some((arena.rows(handle, x, dtype, desc.a_stride, 16), dtype)),
        HostOperand::Quantized(_) => None,
    };
    let mut b = arena.matrix(handle, ops.host_b());
    if desc.b_order != CodeOrder::Published {
        b.repack(handle, desc.b_order).unwrap();
    }
    let bias = case.bias.map(|dtype| (arena.place(handle, &bytes_of(dtype, &extras.bias), dtype.bytes()), dtype));
    let residual =
        case.residual.map(|dtype| (arena.rows(handle, extras.residual.view(), dtype, stride, dtype.bytes()), dtype));
    let before = arena.ready(handle);
    let to = MatMut::new(&mut d, case.out, m, n).unwrap().with_row_stride(stride).unwrap();
    let mut args = match (&quantized, &plain) {
        (Some(a), _) => GemmArgs::new(a, &b, to),
        (None, Some((x, dtype))) => {
            let x = MatRef::new(x, *dtype, m, k).unwrap().with_row_stride(desc.a_stride).unwrap();
            GemmArgs::weight_only(x, &b, to)
        }
        (None, None) => unreachable!(),
    };
    args = args.alpha(case.alpha).activation(case.activation).accumulation(case.accumulation);
    if let Some(beta) = case.beta {
        args = args.accumulate(beta);
    }
    if let Some((bias, dtype)) = &bias {
        args = args.bias(VecRef::new(bias, *dtype, n).unwrap());
    }
    if let Some((residual, dtype)) = &residual {
        args = args.residual(MatRef::new(residual, *dtype, m, n).unwrap().with_row_stride(stride).unwrap());
    }
    plan.prepare(handle, &b).unwrap();
    plan.execute(handle, args).unwrap();
    let after = arena.read_behind(handle, &before, &places, &words);
    assert!(gathered_bytes(&after, &places) == want.bytes, "other bits than of operands apart: {case:?}\n{words}");
}
