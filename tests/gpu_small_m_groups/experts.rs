//! Groups of rows with weights that are decoded, in one launch and each alone.

use ndarray::{Array2, s};
use scaled_gemm::reference::{self, Swiglu};
use scaled_gemm::{
    Activation, CodeOrder, DType, DeviceBuffer, Epilogue, Fp8Format, FusedGemmArgs, GemmArgs, GemmDesc,
    GroupedGemmArgs, GroupedRows, Handle, HostQuantMatrix, KernelFamily, MatMut, MatRef, Operand, QuantMatrix, Scheme,
    SmallMBlock, SmallMConfig, VecRef,
};

use crate::common::gemm::*;
use crate::common::*;
use crate::small_m_weights::{blocked, planned};

pub const F: Fp8Format = Fp8Format::E4M3;

/// A handle on an sm_90.
pub fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::SmallMGroups)
}

/// Every pair that a kernel multiplies.
pub const PAIRS: [(DType, Scheme); 14] = [
    (DType::Bf16, Scheme::Nvfp4),
    (DType::F16, Scheme::Nvfp4),
    (DType::Bf16, Scheme::Nvfp4Row),
    (DType::F16, Scheme::Nvfp4Row),
    (DType::Bf16, Scheme::Mxfp4),
    (DType::Bf16, Scheme::Mxfp8(F)),
    (DType::Bf16, Scheme::Fp8Tensor(F)),
    (DType::F16, Scheme::Fp8Tensor(F)),
    (DType::Bf16, Scheme::Fp8Row(F)),
    (DType::F16, Scheme::Fp8Row(F)),
    (DType::Bf16, Scheme::Fp8Group1x128(F)),
    (DType::F16, Scheme::Fp8Group1x128(F)),
    (DType::Bf16, Scheme::Fp8Group128x128(F)),
    (DType::F16, Scheme::Fp8Group128x128(F)),
];

/// Usual rows, of which each has kernels of its own.
pub const WIDTHS: [usize; 5] = [8, 16, 32, 64, 128];
pub const ALPHA: f32 = 0.75;

pub fn is_e2m1(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::Nvfp4 | Scheme::Nvfp4Row | Scheme::Mxfp4)
}

/// Usual rows of groups that tiles multiply; those of more are multiplied by warpgroup products.
pub fn few_rows(scheme: Scheme) -> usize {
    if is_e2m1(scheme) { 16 } else { 64 }
}

/// The tiles that have the same order of sums: as many parts of k as have fourteen steps of 128 each, four at the most.
pub fn tiles(scheme: Scheme, k: usize) -> SmallMConfig {
    let block = if is_e2m1(scheme) { SmallMBlock::Tile } else { SmallMBlock::TileE4m3 };
    let split = [4, 2].into_iter().find(|split| k.div_ceil(128) >= 14 * split).unwrap_or(1);
    SmallMConfig::new(block, split as u32).unwrap()
}

/// So many rows of a matrix, from one on that begins a tile.
pub fn rows_of(q: &HostQuantMatrix, from: usize, count: usize) -> HostQuantMatrix {
    let (scheme, rows, k) = (q.scheme(), q.rows(), q.cols());
    let row = q.logical_codes().len() / rows;
    let codes = q.logical_codes()[from * row..(from + count) * row].to_vec();
    let [down, across] = scheme.scale_grid(rows, k);
    let scales = match scheme {
        _ if down <= 1 => q.logical_scales().to_vec(),
        _ => {
            let tall = rows.div_ceil(down);
            q.logical_scales()[from / tall * across..(from + count) / tall * across].to_vec()
        }
    };
    if scheme.spec().block.is_some() {
        let [_, blocks] = scheme.block_grid(rows, k);
        let block_scales = &q.logical_block_scales()[from * blocks..(from + count) * blocks];
        return HostQuantMatrix::from_block_logical(scheme, count, k, codes, &scales, block_scales).unwrap();
    }
    HostQuantMatrix::from_logical(scheme, count, k, codes, &scales).unwrap()
}

/// What groups multiply: rows of X are those of A, with what no group has between them.
pub struct Experts {
    pub x: Array2<f32>,
    pub dtype: DType,
    pub gap: usize,
    pub a: DeviceBuffer,
    pub w: HostQuantMatrix,
    pub b: QuantMatrix,
    pub groups: usize,
    /// Rows of B of a group.
    pub each: usize,
}

impl Experts {
    pub fn new(
        handle: &Handle,
        rng: &mut Noise,
        rows: usize,
        [groups, each, k]: [usize; 3],
        pair: (DType, Scheme),
    ) -> Self {
        let x = blocked(rng, rows, k);
        let w = quantized(&blocked(rng, groups * each, k), pair.1);
        Self::of(handle, x, w, groups, pair.0)
    }

    pub fn of(handle: &Handle, x: Array2<f32>, w: HostQuantMatrix, groups: usize, dtype: DType) -> Self {
        let gap = x.nrows() / 4 % 2 * 8;
        let x = x.mapv(|v| round_to(dtype, v));
        let a = handle.upload(&strided(&x, dtype, gap)).unwrap();
        let b = QuantMatrix::from_host(handle, &w).unwrap();
        Self { dtype, gap, a, b, groups, each: w.rows() / groups, x, w }
    }

    pub fn a(&self) -> MatRef<'_> {
        let (rows, k) = (self.x.nrows(), self.x.ncols());
        MatRef::new(&self.a, self.dtype, rows, k).unwrap().with_row_stride(k + self.gap).unwrap()
    }

    /// The product of some rows with a group's matrix.
    pub fn alone(&self, handle: &Handle, g: usize, rows: std::ops::Range<usize>, out: DType, end: &End) -> Vec<u8> {
        let (n, k) = (self.each, self.x.ncols());
        let b = QuantMatrix::from_host(handle, &rows_of(&self.w, g * n, n)).unwrap();
        let config = tiles(self.w.scheme(), k);
        let mut all = Vec::new();
        for start in rows.clone().step_by(64) {
            let own = self.x.slice(s![start..rows.end.min(start + 64), ..]).to_owned();
            let m = own.nrows();
            let epilogue =
                Epilogue { bias: end.bias.as_ref().map(|_| DType::F32), activation: end.activation, residual: None };
            let desc = GemmDesc::new(m, n, k, Operand::Plain(self.dtype), self.w.scheme(), out).with_epilogue(epilogue);
            let a = handle.upload(&strided(&own, self.dtype, 0)).unwrap();
            let a = MatRef::new(&a, self.dtype, m, k).unwrap();
            let mut d = poisoned(handle, m * n * out.bytes());
            let to = MatMut::new(&mut d, out, m, n).unwrap();
            let bias = end.bias.as_ref().map(|bias| handle.upload(&bias[g * n..(g + 1) * n]).unwrap());
            let mut args = GemmArgs::weight_only(a, &b, to).alpha(ALPHA).activation(end.activation);
            if let Some(bias) = &bias {
                args = args.bias(VecRef::new(bias, DType::F32, n).unwrap());
            }
            planned(handle, &desc, config).execute(handle, args).unwrap();
            all.extend(handle.stream().clone_dtoh(&d).unwrap());
        }
        all
    }

    /// The same of both matrices of a group, and SwiGLU of them.
    pub fn alone_gated(&self, handle: &Handle, g: usize, rows: std::ops::Range<usize>, out: DType) -> Vec<u8> {
        let m = rows.len();
        let both = values_of(DType::F32, &self.alone(handle, g, rows, DType::F32, &End::default()));
        let both = Array2::from_shape_vec((m, self.each), both).unwrap();
        let (h, _) = reference::swiglu(both.view(), &Swiglu::default()).unwrap();
        bytes_of(out, h.mapv(|v| round_to(out, v)).iter())
    }
}

/// What follows the sums.
#[derive(Default)]
pub struct End {
    pub bias: Option<Vec<f32>>,
    pub activation: Activation,
}

/// Rows `gap` elements apart, NaN between them.
pub fn strided(x: &Array2<f32>, dtype: DType, gap: usize) -> Vec<u8> {
    let mut values = Vec::new();
    for row in x.rows() {
        values.extend(row.iter());
        values.extend(vec![f32::NAN; gap]);
    }
    bytes_of(dtype, &values)
}

/// Where groups of these counts lie, with gaps, each at a multiple of four rows.
pub fn starts_of(counts: &[usize]) -> (Vec<i64>, usize) {
    let mut at = 4;
    let starts = counts.iter().enumerate().map(|(g, count)| {
        let start = at;
        at += count.next_multiple_of(4) + g % 3 * 4;
        start as i64
    });
    (starts.collect(), at + 4)
}

/// Rows of a slot that holds each of these.
fn slot_rows_of(counts: &[usize]) -> usize {
    counts.iter().max().unwrap().next_multiple_of(4)
}

/// Rows of A for groups of these counts, in slots or not.
pub fn rows_for(counts: &[usize], slots: bool) -> usize {
    if slots { slot_rows_of(counts) * counts.len() } else { starts_of(counts).1 }
}

/// D of all groups in one launch: rows of no group are poison.
pub struct Launch<'a> {
    pub of: &'a Experts,
    pub starts: Option<&'a DeviceBuffer>,
    pub slot_rows: usize,
    pub counts: &'a DeviceBuffer,
    pub usual: usize,
    pub out: DType,
    pub gap: usize,
}

impl Launch<'_> {
    pub fn rows(&self) -> GroupedRows<'_> {
        match self.starts {
            Some(starts) => GroupedRows::Contiguous { starts: starts.view(), counts: self.counts.view() },
            None => GroupedRows::Masked { slot_rows: self.slot_rows, counts: self.counts.view() },
        }
    }

    pub fn columns(&self, gated: bool) -> usize {
        if gated { self.of.each / 2 } else { self.of.each }
    }

    pub fn bytes(&self, gated: bool) -> usize {
        self.of.x.nrows() * (self.columns(gated) + self.gap) * self.out.bytes()
    }

    fn to<'b>(&self, d: &'b mut DeviceBuffer, gated: bool) -> scaled_gemm::Result<MatMut<'b>> {
        let (rows, n) = (self.of.x.nrows(), self.columns(gated));
        MatMut::new(d, self.out, rows, n)?.with_row_stride(n + self.gap)
    }

    pub fn plain<'b>(&'b self, d: MatMut<'b>) -> GroupedGemmArgs<'b> {
        let args = GroupedGemmArgs::weight_only(self.of.a(), &self.of.b, self.of.groups, self.rows(), d);
        args.alpha(ALPHA).expected_rows(self.usual)
    }

    fn gated<'b>(&'b self, d: MatMut<'b>) -> FusedGemmArgs<'b> {
        let args = FusedGemmArgs::swiglu_weight_only(self.of.a(), &self.of.b, d).alpha(ALPHA);
        args.groups(self.of.groups, self.rows()).expected_rows(self.usual)
    }

    /// What `explain` says of it, after checking that it is multiplied as so many usual rows should be.
    pub fn explain(&self, handle: &Handle, gated: bool) -> String {
        let mut d = handle.alloc(self.bytes(gated)).unwrap();
        let to = self.to(&mut d, gated).unwrap();
        let text = if gated { self.gated(to).explain(handle) } else { self.plain(to).explain(handle) }.unwrap();
        let by_warpgroups = self.usual.min(self.of.x.nrows()) > few_rows(self.of.w.scheme());
        assert_eq!(text.contains("by warpgroup products"), by_warpgroups, "{} usual rows: {text}", self.usual);
        text
    }

    pub fn enqueue(&self, handle: &Handle, d: &mut DeviceBuffer, gated: bool, end: &End) -> scaled_gemm::Result<()> {
        let to = self.to(d, gated)?;
        if gated {
            return handle.fused_gemm(self.gated(to));
        }
        let bias = end.bias.as_ref().map(|bias| handle.upload(bias)).transpose()?;
        let args = self.plain(to).activation(end.activation);
        match &bias {
            Some(bias) => handle.grouped_gemm(args.bias(VecRef::new(bias, DType::F32, self.of.w.rows())?)),
            None => handle.grouped_gemm(args),
        }
    }

    /// All bytes of D.
    pub fn run(&self, handle: &Handle, gated: bool, end: &End) -> Vec<u8> {
        let mut d = handle.upload(&vec![0xFFu8; self.bytes(gated)]).unwrap();
        self.enqueue(handle, &mut d, gated, end).unwrap();
        handle.read_bytes(&d.view()).unwrap()
    }

    /// What it must be where groups have these rows: start and count.
    pub fn want(&self, handle: &Handle, taken: &[(usize, usize)], gated: bool, end: &End) -> Vec<u8> {
        let (row, step) = (self.columns(gated) * self.out.bytes(), (self.columns(gated) + self.gap) * self.out.bytes());
        let mut want = vec![0xFF; self.bytes(gated)];
        for (g, (start, count)) in taken.iter().copied().enumerate().filter(|(_, (_, count))| *count > 0) {
            let rows = start..start + count;
            let own = match gated {
                true => self.of.alone_gated(handle, g, rows, self.out),
                false => self.of.alone(handle, g, rows, self.out, end),
            };
            for (i, bytes) in own.chunks(row).enumerate() {
                want[(start + i) * step..][..row].copy_from_slice(bytes);
            }
        }
        want
    }
}

/// Groups of these counts, contiguous or in slots, of rows of one width of kernels.
pub fn check(
    handle: &Handle,
    rng: &mut Noise,
    counts: &[usize],
    [n, k]: [usize; 2],
    pair: (DType, Scheme),
    of_width: (usize, DType),
    (slots, gated): (bool, bool),
) {
    let each = if gated { 2 * n } else { n };
    let mut of = Experts::new(handle, rng, rows_for(counts, slots), [counts.len(), each, k], pair);
    check_of(handle, rng, &mut of, counts, of_width, (slots, gated));
}

/// The same of experts that others may be checked with, too. What `explain` says of the launch.
pub fn check_of(
    handle: &Handle,
    rng: &mut Noise,
    of: &mut Experts,
    counts: &[usize],
    (usual, out): (usize, DType),
    (slots, gated): (bool, bool),
) -> String {
    let (starts, _) = starts_of(counts);
    let slot_rows = slot_rows_of(counts);
    let (n, k, pair) = (of.each / if gated { 2 } else { 1 }, of.x.ncols(), (of.dtype, of.w.scheme()));
    of.b.repack(handle, CodeOrder::Published).unwrap();
    let start = |g: usize| if slots { g * slot_rows } else { starts[g] as usize };
    let taken: Vec<_> = counts.iter().enumerate().map(|(g, count)| (start(g), *count)).collect();
    let starts_on = handle.upload(&starts).unwrap();
    let counts_on = handle.upload(&counts.iter().map(|count| *count as i64).collect::<Vec<_>>()).unwrap();
    let starts = (!slots).then_some(&starts_on);
    let launch = Launch { of, starts, slot_rows, counts: &counts_on, usual, out, gap: counts.len() % 2 * 4 };
    let text = launch.explain(handle, gated);
    let mut end = End::default();
    if !gated && n == 256 {
        end.bias = Some((0..counts.len() * n).map(|_| rng.normal()).collect());
        end.activation = Activation::Silu;
    }
    let got = launch.run(handle, gated, &end);
    let want = launch.want(handle, &taken, gated, &end);
    let (step, size) = ((launch.columns(gated) + launch.gap) * out.bytes(), out.bytes());
    let wrong = (0..got.len() / size).find(|i| got[i * size..][..size] != want[i * size..][..size]);
    let wrong = wrong.map(|i| (i * size / step, i * size % step / size));
    assert_eq!(wrong, None, "{pair:?}, {usual} rows, n {n}, k {k}, slots {slots}, gated {gated}: row and column");
    assert!(launch.run(handle, gated, &end) == got, "a second run differs: {pair:?}");
    let gap = launch.gap;
    if CodeOrder::Repacked.check(pair.1, of.b.rows(), k).is_ok() {
        of.b.repack(handle, CodeOrder::Repacked).unwrap();
        let launch = Launch { of, starts, slot_rows, counts: &counts_on, usual, out, gap };
        assert!(launch.run(handle, gated, &end) == got, "repacked weights: {pair:?}");
    }
    text
}
