//! [`Way`]: how the products of groups are made, and [`GroupedGemmArgs::explain`], which says why.

use super::fit::{Fit, check_numbers};
use super::operand::check_members;
use super::{GroupedA, GroupedGemmArgs, few, slots};
use crate::error::{Error, Result};
use crate::format::{DType, Operand, pair};
use crate::gpu::gemm::available::HOPPER;
use crate::gpu::gemm::lanes::check_streams;
use crate::gpu::gemm::our_pairs::{Sm90Pair, grouped_pair};
use crate::gpu::gemm::outline::{ScaleUse, second_level};
use crate::gpu::gemm::sm90_rules;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{Sm90Along, Sm90Config, SmallMGroupsConfig, SmallMWeights};
use crate::gpu::lt::why_not_grouped;
use crate::gpu::matrix::QuantMatrix;

/// Of rows with block scales in slots: up to so many of a group one launch that decodes weights is faster than a product a slot, which reads and writes them as numbers (H200, 2026-11, the
/// record of prefill, 8 groups of BF16 rows x 4096 x 7168 `nvfp4-row`: 347 us for 354 at 128 rows each, 664 for 415 at 256).
const MOST_DECODED_ROWS: usize = 128;

/// How groups are multiplied.
pub(super) enum Way<'a> {
    /// One launch of our kernels for sm_90, which read codes and scales so.
    Launch(&'a QuantMatrix, Sm90Pair),
    /// One launch of those that decode such weights, with rows of this type, as which those of a quantized A are dequantized before.
    FewRows(SmallMWeights, SmallMGroupsConfig, DType),
    /// One product a slot, and why not the other.
    Slots(&'a QuantMatrix, String),
}

impl<'a> GroupedGemmArgs<'a> {
    /// Which way the products go, of operands that fit together.
    pub(super) fn way(&self, handle: &Handle) -> Result<Way<'a>> {
        check_streams(self.streams)?;
        self.check_product_a_slot()?;
        let Self { a, b, .. } = self;
        let a = match a {
            GroupedA::Quantized(a) => *a,
            GroupedA::Plain(a) => {
                let weights = few::served(handle, a, b)?;
                if self.config.is_some() {
                    return Err(Error::unsupported(
                        "a configuration of sm90 for a plain A",
                        "other kernels multiply it",
                        "leave it out",
                    ));
                }
                self.check()?;
                return Ok(Way::FewRows(weights, few::config(weights, self.usual_rows(), a.cols())?, a.dtype()));
            }
        };
        a.check_published("A of a grouped product")?;
        pair::check_basis(a.basis(), b.basis())?;
        let (major, minor) = handle.device().compute_capability;
        let reason = match grouped_pair(a.scheme(), b.scheme()) {
            Ok(_) if self.a_product_a_slot => "it is asked for".to_string(),
            Ok(pair) if (major, minor) == HOPPER => {
                self.config.map_or(Ok(()), |config| pair.check_groups(Sm90Along::Rows, config))?;
                self.check()?;
                return Ok(Way::Launch(a, pair));
            }
            Ok(_) => format!("the grouped product is for sm_90, and this GPU is sm_{major}{minor}"),
            Err(reason) => format!("the grouped product is ours for sm_90: {reason}"),
        };
        // A pair that nobody multiplies has a reason of its own.
        let device = handle.device().to_string();
        pair::check_pair(a.scheme(), b.scheme(), &device)?;
        if self.config.is_some() {
            return Err(Error::unsupported(
                format!("a configuration of sm90 for groups of {} x {}", a.scheme(), b.scheme()),
                reason,
                "leave it out",
            ));
        }
        let in_slots = slots::why_not(self, a);
        if let Some((weights, dtype)) = few::served_quantized(handle, a.scheme(), b, self.d.dtype())
            && !self.a_product_a_slot
            && (in_slots.is_some() || self.usual_rows() <= MOST_DECODED_ROWS)
        {
            self.check()?;
            return Ok(Way::FewRows(weights, few::config(weights, self.usual_rows(), a.cols())?, dtype));
        }
        match in_slots {
            None => {
                self.check()?;
                Ok(Way::Slots(a, reason))
            }
            Some(why) if self.a_product_a_slot => Err(Error::unsupported(
                format!("one product a slot of {} x {}", a.scheme(), b.scheme()),
                why,
                "leave product_a_slot out where one launch takes them",
            )),
            Some(why) => Err(Error::Pair {
                a: Operand::Quantized(a.scheme()),
                b: b.scheme(),
                device,
                reason: format!("{reason}; {why}"),
                remedy: "multiply the groups one by one with Handle::scaled_gemm, of a pair that Handle::supports offers on this GPU".to_string(),
            }),
        }
    }

    /// Refuses beside the wish for one product a slot what belongs to one launch.
    fn check_product_a_slot(&self) -> Result<()> {
        if !self.a_product_a_slot {
            return Ok(());
        }
        if let GroupedA::Plain(_) = self.a {
            return Err(Error::unsupported(
                "one product a slot of a plain A",
                "groups of plain rows are multiplied in one launch, and that alone",
                "multiply them one by one with Handle::scaled_gemm, or leave product_a_slot out",
            ));
        }
        if let Some(config) = self.config {
            return Err(Error::unsupported(
                format!("the configuration {config} with one product a slot"),
                "it is that of one launch, and products of slots are planned",
                "leave one of the two out",
            ));
        }
        Ok(())
    }

    /// Refuses scales of groups of an operand that has none for a whole matrix.
    fn check_scales(&self) -> Result<()> {
        let operands = [self.a.operand(), self.b.scheme().into()];
        let has_one = |operand: Operand| second_level(operand) == ScaleUse::One;
        if self.scales.iter().zip(operands).all(|(scales, operand)| scales.is_none() || has_one(operand)) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("a scale for each group of {} x {}", self.a.operand(), self.b.scheme()),
            "it takes the place of the one that a whole matrix has: of fp8-tensor operands and of nvfp4",
            "leave it out: each row of fp8-row and nvfp4-row operands has the scale of its group",
        ))
    }

    /// Refuses operands that do not fit together.
    fn check(&self) -> Result<()> {
        let Self { a, b, groups, rows, d, bias, .. } = self;
        let (of_a, of_d) = ([a.rows(), a.cols()], [d.rows(), d.cols()]);
        self.check_scales()?;
        check_members(self.tensors, *groups, rows)?;
        let groups = Some((*groups, rows));
        Fit { a: of_a, b, d: of_d, groups, matrices: 1, bias: bias.as_ref() }.check()?;
        check_numbers(d, "store one of them")
    }

    /// Rows of a group.
    fn usual_rows(&self) -> usize {
        let expected = self.expected_rows.unwrap_or_else(|| self.rows.expected(self.groups, self.a.rows()));
        expected.clamp(1, self.a.rows().max(1))
    }

    /// The configuration asked for, or the one that should be fastest.
    pub(super) fn chosen(&self, pair: Sm90Pair, sm_count: usize) -> Sm90Config {
        let mnk = [self.usual_rows(), self.d.cols(), self.a.cols()];
        let has_kernels = |config: &Sm90Config| pair.has_groups(Sm90Along::Rows, *config);
        self.config.unwrap_or_else(|| sm90_rules::first_of_groups(self.groups, mnk, sm_count, has_kernels))
    }
}

impl GroupedGemmArgs<'_> {
    /// Which way the products go, what it costs in memory, and why; of products of slots also on how many streams. Those it plans, which may reserve the scratch memory of one
    /// ([`Handle::plan`]): not for graph capture.
    ///
    /// # Errors
    /// As [`Handle::grouped_gemm`].
    pub fn explain(&mut self, handle: &Handle) -> Result<String> {
        let (groups, n, k) = (self.groups, self.d.cols(), self.a.cols());
        let what = format!("{groups} groups of {} x {}, n = {n}, k = {k}", self.a.operand(), self.b.scheme());
        let why_not_the_librarys = why_not_grouped(handle.lt_version(), handle.device().compute_capability);
        match self.way(handle)? {
            Way::Launch(_, pair) => Ok(format!(
                "{what}\n  one launch of {}, on the handle's stream, by groups that the device knows; no scratch memory; empty groups take no time\n  because our kernels for sm_90 serve this pair; {why_not_the_librarys}",
                self.chosen(pair, handle.device().sm_count as usize)
            )),
            Way::FewRows(_, config, dtype) => {
                let (before, because) = match few::RowsOfA::of(&self.a, dtype) {
                    few::RowsOfA::Plain(_) => ("no scratch memory".to_string(), "A is plain: weights are decoded"),
                    rows => (
                        format!(
                            "behind a launch that dequantizes all of A to {dtype}, {} bytes of scratch memory",
                            rows.scratch_bytes()
                        ),
                        "both sides have block scales, which this GPU's tensor cores do not read: weights are decoded",
                    ),
                };
                Ok(format!(
                    "{what}\n  one launch of small-m, {config}, on the handle's stream, by groups that the device knows; {before}; matrices of groups without rows are not read\n  because {because}; {why_not_the_librarys}"
                ))
            }
            Way::Slots(a, reason) => {
                let slots::Explained { how, plan } = slots::explain(handle, self, a)?;
                Ok(format!(
                    "{what}\n  one product a slot, {groups} of them {how}, each of all rows of a slot: the launches of a planned product are fixed, so that counts are not read, and empty groups take as long\n  because {reason}; {why_not_the_librarys}\n{plan}"
                ))
            }
        }
    }
}
