//! Gradients of the matrices of groups in one launch: groups along k of two matrices, the transposes of all rows.

use super::GroupedRows;
use super::fit::{check_apart, check_places_apart};
use super::weight::check_dw;
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{DType, Operand, pair};
use crate::gpu::gemm::available::HOPPER;
use crate::gpu::gemm::our_pairs::{Sm90Pair, grouped_pair};
use crate::gpu::gemm::sm90_rules;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{Sm90Along, Sm90Call, Sm90Config, Sm90End, Sm90Groups, Sm90Operand, Sm90Scales};
use crate::gpu::lt::NO_GRADIENTS;
use crate::gpu::matrix::{MatMut, QuantMatrix};

/// Rows of a group, from which on scales of rows and matrices are multiplied in tiles of 256 x 128.
const LEAST_ROWS_OF_LARGE: usize = 4096;

pub(super) struct Whole<'a> {
    pub(super) dy: &'a QuantMatrix,
    pub(super) x: &'a QuantMatrix,
    pub(super) groups: usize,
    pub(super) rows: GroupedRows<'a>,
}

impl Whole<'_> {
    /// How the kernels read both, if they do.
    fn pair(&self) -> Option<Sm90Pair> {
        let read = |pair: &Sm90Pair| matches!(pair.scales, Sm90Scales::Vectors | Sm90Scales::Outer { .. });
        grouped_pair(self.dy.scheme(), self.x.scheme()).ok().filter(read)
    }

    /// Refuses operands that do not fit together, and GPUs and schemes that have no such kernel. How the kernels read them.
    fn check(&self, handle: &Handle, dw: &MatMut<'_>, config: Option<Sm90Config>) -> Result<Sm90Pair> {
        let &Self { dy, x, groups, ref rows } = self;
        let (major, minor) = handle.device().compute_capability;
        let read = match self.pair() {
            _ if (major, minor) != HOPPER => {
                Err(format!("groups along k in one launch are for sm_90, and this GPU is sm_{major}{minor}"))
            }
            None => {
                Err("groups along k in one launch are fp8-1x128, fp8-row or fp8-tensor on both sides, with e5m2 on at most one".to_string())
            }
            Some(pair) => Ok(pair),
        };
        let read = read.map_err(|reason| Error::Pair {
            a: Operand::Quantized(dy.scheme()),
            b: x.scheme(),
            device: handle.device().to_string(),
            reason,
            remedy: "cast each slot to a transpose of its own (Handle::quantize_slots_transposed_into), and pass these to GroupedWeightGradient::new".to_string(),
        })?;
        config.map_or(Ok(()), |config| read.check_groups(Sm90Along::K, config))?;
        pair::check_basis(dy.basis(), x.basis())?;
        if dy.cols() != x.cols() {
            return Err(Error::shape(
                "X of a grouped weight gradient",
                format!("{} x {}", x.rows(), x.cols()),
                format!("must have the {} columns of dY transposed", dy.cols()),
                "pass transposes of the same rows",
            ));
        }
        check_dw(dw, groups, dy.rows(), x.rows())?;
        match rows {
            GroupedRows::Masked { slot_rows, .. } if !Sm90Along::K.holds_slots(dy.cols(), groups, *slot_rows) => {
                Err(Error::shape(
                    "rows of dY and X",
                    format!("{} rows for {groups} slots of {slot_rows}", dy.cols()),
                    "must hold every slot, each of a multiple of 128 rows: the kernels take k in blocks of 128, of which none belongs to two groups",
                    "pass slots of a multiple of 128 rows, and transposes of all slots",
                ))
            }
            _ => Ok(read),
        }
    }

    /// The configuration asked for, or the one that should be fastest.
    fn chosen(
        &self,
        handle: &Handle,
        pair: Sm90Pair,
        config: Option<Sm90Config>,
        expected_rows: Option<usize>,
    ) -> Sm90Config {
        let Self { dy, x, groups, rows } = self;
        let k = expected_rows.unwrap_or_else(|| rows.expected(*groups, dy.cols())).clamp(1, dy.cols().max(1));
        let sm_count = handle.device().sm_count as usize;
        let mnk = [dy.rows(), x.rows(), k];
        // Where a group has few blocks of k a large tile's end, which adds 128 KiB to dW, is most of it: 1.09 to 1.18 of the time of 128x128 with 1024 rows, 1.02 to 1.04 with 128, and 0.94 to 0.96 with 8192
        // (8, 64 and 4 x 4096 x 7168, H200, 2026-11). A straight line through those of 1024 and 8192 meets the other's at 3800.
        let ends_late = matches!(pair.scales, Sm90Scales::Outer { .. }) && k < LEAST_ROWS_OF_LARGE;
        let has_kernels = |config: &Sm90Config| {
            pair.has_groups(Sm90Along::K, *config) && !(ends_late && *config == Sm90Config::Tile256x128)
        };
        config.unwrap_or_else(|| sm90_rules::first_of_groups(false, *groups, mnk, sm_count, has_kernels))
    }

    pub(super) fn explain(
        &self,
        handle: &Handle,
        dw: &MatMut<'_>,
        config: Option<Sm90Config>,
        expected_rows: Option<usize>,
    ) -> Result<String> {
        let pair = self.check(handle, dw, config)?;
        let &Self { dy, x, groups, .. } = self;
        Ok(format!(
            "{groups} groups along k of {} rows, dW of {} x {} each\n  one launch of {}, on the handle's stream, by groups that the device knows; no scratch memory; empty groups take no time, others as long as their rows\n  because our kernels for sm_90 serve {} x {}; {}",
            dy.cols(),
            dy.rows(),
            x.rows(),
            self.chosen(handle, pair, config, expected_rows),
            dy.scheme(),
            x.scheme(),
            NO_GRADIENTS,
        ))
    }

    pub(super) fn enqueue(
        &self,
        handle: &Handle,
        dw: &mut MatMut<'_>,
        config: Option<Sm90Config>,
        expected_rows: Option<usize>,
    ) -> Result<()> {
        let pair = self.check(handle, dw, config)?;
        let &Self { dy, x, groups, ref rows } = self;
        let [m, n, k] = [dy.rows(), x.rows(), dy.cols()];
        if groups == 0 || m == 0 || n == 0 || k == 0 {
            return Ok(());
        }
        let config = self.chosen(handle, pair, config, expected_rows);
        let (queue, kernels) = (handle.queue(), handle.kernels());
        kernels.load(queue, pair.kernels())?;
        let order = queue.order();
        let (a, b) = (dy.read(&order)?, x.read(&order)?);
        let (d_stride, d_bytes) = (dw.row_stride(), dw.extent_bytes());
        let d = dw.data_mut().at(&order)?.slice(0, d_bytes);
        check_apart("dY", &a.all(), &d)?;
        check_apart("X", &b.all(), &d)?;
        rows.with_places(groups, &order, |places| {
            check_places_apart(&places, &d)?;
            let call = Sm90Call {
                config,
                stand_in: None,
                formats: pair.formats,
                m,
                n,
                k,
                a: Sm90Operand { codes: &a.codes, scales: &a.scales },
                b: Sm90Operand { codes: &b.codes, scales: &b.scales },
                layout: pair.scales,
                d: &d,
                d_stride,
                d_type: DType::F32,
                alpha: 1.0,
                beta: 1.0,
                bias: None,
                activation: Activation::None,
                residual: None,
                groups: Some(Sm90Groups { along: Sm90Along::K, ..places.into() }),
                end: Sm90End::Numbers,
            };
            handle.sm90_product(&call)
        })
    }
}
