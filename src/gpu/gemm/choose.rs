//! The choice of a plan: a record, or the first formulation in the order of the rules that this GPU and library offer. [`Handle::supports`] and
//! [`Handle::offers`] ask the same, and plan nothing.

use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::gpu::gemm::available::{Facts, available};
use crate::gpu::gemm::cache::PlanState;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::pair_kind::{PairKind, pair_kind};
use crate::gpu::gemm::plan::{GemmPlan, PlanOptions};
use crate::gpu::gemm::record::TuneRecord;
use crate::gpu::gemm::rules;
use crate::gpu::gemm::steps::{Candidate, Offered, Search};
use crate::gpu::handle::Handle;

/// One formulation of a problem, and whether this GPU and library offer it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offer {
    /// The formulation.
    pub formulation: Formulation,
    /// Why it is not offered; `None` if it is.
    pub refusal: Option<String>,
}

impl Handle {
    /// The formulations that this GPU and cuBLASLt offer for the problem, in the order of preference. Runs nothing, allocates on the host alone,
    /// and waits for nothing.
    ///
    /// # Errors
    /// Those of [`GemmDesc::check`]; [`Error::Pair`] with the reason for each formulation if there is none;
    /// [`Error::Unsupported`] inside graph capture.
    pub fn supports(&self, desc: &GemmDesc) -> Result<Vec<Formulation>> {
        let offers = self.offers(desc)?;
        let offered: Vec<Formulation> = offers.iter().filter(|o| o.refusal.is_none()).map(|o| o.formulation).collect();
        if offered.is_empty() {
            let reason = |o: &Offer| format!("{}: {}", o.formulation, o.refusal.as_deref().unwrap_or_default());
            return Err(self.no_way(desc, &offers.iter().map(reason).collect::<Vec<_>>()));
        }
        Ok(offered)
    }

    /// Every formulation, in the order of preference, with the reason where it is not offered. Runs nothing, allocates on the host alone,
    /// and waits for nothing.
    ///
    /// # Errors
    /// Those of [`GemmDesc::check`]; [`Error::Unsupported`] inside graph capture.
    pub fn offers(&self, desc: &GemmDesc) -> Result<Vec<Offer>> {
        self.refuse_capture("asking what is supported")?;
        desc.check(&self.device().to_string())?;
        let (order, _) = rules::preference(desc, Facts::of(self));
        let ask = |formulation| {
            // An empty D needs no library; what the table says is the answer.
            let refusal = match desc.is_empty() {
                true => available(desc, Facts::of(self), formulation).err(),
                false => self.offer(desc, formulation, PlanOptions::default().search())?.err(),
            };
            Ok(Offer { formulation, refusal })
        };
        order.into_iter().map(ask).collect()
    }

    /// The best finish of one formulation, or why there is none.
    pub(crate) fn offer(
        &self,
        desc: &GemmDesc,
        formulation: Formulation,
        search: Search,
    ) -> Result<Offered<Candidate>> {
        if let Err(reason) = available(desc, Facts::of(self), formulation) {
            return Ok(Err(reason));
        }
        let mut reasons = Vec::new();
        for finish in Finish::ALL {
            match Candidate::ask(self, desc, formulation, finish, search)? {
                Ok(mut candidate) => {
                    candidate.passed_over = reasons;
                    return Ok(Ok(candidate));
                }
                Err(reason) => reasons.push(format!("{finish}: {reason}")),
            }
        }
        Ok(Err(reasons.join("; ")))
    }

    fn no_way(&self, desc: &GemmDesc, rejected: &[String]) -> Error {
        let cc = self.device().compute_capability;
        let remedy = match pair_kind(desc) {
            _ if desc.batch_invariant => {
                "multiply weights that small-m decodes, or quantize both operands to FP8 in schemes that sm90 serves and multiply on an sm_90; or do not ask for batch_invariant"
            }
            PairKind::Fp8(..) if cc < (8, 9) => {
                "multiply on the CPU (reference::scaled_gemm), or on a GPU of sm_89 or newer"
            }
            PairKind::Fp8(ScaleLayout::Vec128 | ScaleLayout::Blk128, _) => {
                "quantize by row or tensor, which runs on sm_89 and up, or take cuBLASLt 12.9.1 or newer on sm_90"
            }
            PairKind::Block(_) | PairKind::Mxfp4 | PairKind::WeightOnly if cc < (8, 0) => {
                "multiply on the CPU (reference::scaled_gemm), or on a GPU of sm_80 or newer"
            }
            PairKind::WeightOnlyFp8 => {
                "quantize A, of fp8-1x128 and fp8-128x128 weights as fp8-1x128, of others as they are; or multiply on an sm_80 or newer"
            }
            _ => "try a newer cuBLASLt, another shape or a plainer epilogue",
        };
        Error::Pair {
            a: desc.a,
            b: desc.b,
            device: self.device().to_string(),
            reason: format!("no way to compute {desc}: {}", rejected.join("; ")),
            remedy: remedy.to_string(),
        }
    }
}

/// Loads the kernels of a candidate's product. The error, if this process cannot have them: then other ways will do where none was asked for.
fn cannot_load(handle: &Handle, candidate: &Candidate) -> Result<Option<Error>> {
    let Some(family) = candidate.product().and_then(|product| product.kernels()) else { return Ok(None) };
    match handle.load_kernels(&[family]) {
        Ok(()) => Ok(None),
        Err(error @ (Error::Kernel { .. } | Error::Library { .. })) => Ok(Some(error)),
        Err(other) => Err(other),
    }
}

impl GemmPlan {
    /// Takes the choice of a record for this problem, or refuses it.
    pub(super) fn take_record(&mut self, handle: &Handle, record: &TuneRecord, problem: &GemmDesc) -> Result<()> {
        record.check(&self.environment, problem)?;
        if let Some(asked) = self.options.formulation.filter(|f| *f != record.formulation()) {
            return Err(Error::Record {
                reason: format!("formulation is {} in the record and {asked} was asked for", record.formulation()),
                remedy: "give the record or the formulation, not both".to_string(),
            });
        }
        let choice = (record.formulation(), record.finish(), record.algorithm());
        // Its words may have been changed since it was measured: what the rules would not try is refused here, too. Of two formulations the library may see the same problem.
        let candidate = match available(&self.desc, Facts::of(handle), record.formulation()) {
            Ok(()) => Candidate::recorded(handle, &self.desc, choice, self.options.search())?,
            Err(reason) => Err(reason),
        };
        match candidate {
            Ok(candidate) => self.candidate = Some(candidate),
            Err(reason) => {
                return Err(Error::Record {
                    reason: format!("{} with {}: {reason}", record.formulation(), record.algorithm()),
                    remedy: "measure again here: GemmPlan::autotune, or `scaled-gemm tune`".to_string(),
                });
            }
        }
        self.measured_us = record.measured_us();
        self.reason = match record.measured_us() {
            Some(us) => format!("a record says so, measured at {us:.1} us"),
            None => "a record says so".to_string(),
        };
        Ok(())
    }

    /// Takes the choice of the handle's tuning table, if it has one that still works. Never silent: it is logged.
    pub(super) fn take_tuned(&mut self, handle: &Handle) -> Result<bool> {
        let asked = |r: &TuneRecord| self.options.formulation.is_none_or(|f| f == r.formulation());
        let found = |problem: &GemmDesc| handle.slot::<PlanState>().tuning.find(&self.environment, problem).cloned();
        let mut problem = self.desc;
        let mut record = found(&problem);
        if record.is_none() && problem.chained {
            // Measured for calls alone, which holds in chains but for what is planned otherwise there.
            problem = problem.with_chained(false);
            record = found(&problem);
            if record.as_ref().is_some_and(|record| record.algorithm().is_of_links(problem.m)) {
                record = None;
                let reason = "of calls alone, and links have other parts of k: `scaled-gemm tune --chained`";
                tracing::warn!(reason, "tuning record passed over for {}", self.desc);
                self.rejected.push(format!("tuning record: {reason}"));
            }
        }
        if record.is_none() && self.rejected.is_empty() {
            let reason = handle.slot::<PlanState>().tuning.passed_over(&self.environment, &self.desc);
            if let Some(reason) = reason {
                tracing::debug!(reason, "tuning record passed over for {}", self.desc);
                self.rejected.push(format!("tuning record: {reason}"));
            }
        }
        let Some(record) = record.filter(asked) else { return Ok(false) };
        let reason = match self.take_record(handle, &record, &problem) {
            Ok(()) => match self.candidate.as_ref().map_or(Ok(None), |candidate| cannot_load(handle, candidate))? {
                None => return Ok(true),
                Some(error) => error.to_string(),
            },
            Err(Error::Record { reason, .. }) => reason,
            Err(other) => return Err(other),
        };
        (self.candidate, self.measured_us) = (None, None);
        tracing::warn!(%reason, "tuning record passed over for {}", self.desc);
        self.rejected.push(format!("tuning record: {reason}"));
        Ok(false)
    }

    /// Tries formulations in the order of the rules; the first that is offered wins.
    pub(super) fn choose(&mut self, handle: &Handle) -> Result<()> {
        let search = self.options.search();
        if let Some(asked) = self.options.formulation {
            match handle.offer(&self.desc, asked, search)? {
                Ok(candidate) => self.candidate = Some(candidate),
                Err(reason) => {
                    return Err(Error::unsupported(
                        format!("formulation {asked} for {} on {}", self.desc, handle.device()),
                        reason,
                        "leave the choice to plan, or ask Handle::supports",
                    ));
                }
            }
            self.reason = "it was asked for".to_string();
            let others = Formulation::ALL.into_iter().filter(|f| *f != asked);
            self.rejected.extend(others.map(|f| format!("{f}: {asked} was asked for")));
            return Ok(());
        }
        let (order, mut why) = rules::preference(&self.desc, Facts::of(handle));
        let mut not_loaded = None;
        for (place, formulation) in order.into_iter().enumerate() {
            if let Some(chosen) = &self.candidate {
                let chosen = chosen.outline().formulation;
                let reason = match available(&self.desc, Facts::of(handle), formulation) {
                    Ok(()) => format!("{chosen} comes first: {why}"),
                    Err(reason) => reason,
                };
                self.rejected.push(format!("{formulation}: {reason}"));
                continue;
            }
            match handle.offer(&self.desc, formulation, search)? {
                Ok(candidate) => {
                    if let Some(error) = cannot_load(handle, &candidate)? {
                        tracing::warn!(%error, "{formulation} passed over for {}", self.desc);
                        self.rejected.push(format!("{formulation}: {error}"));
                        not_loaded.get_or_insert(error);
                        continue;
                    }
                    self.candidate = Some(candidate);
                    // What the rules said, they said of the first.
                    if place > 0 {
                        why =
                            "what usually comes before it is not offered, or its kernels cannot be loaded".to_string();
                    }
                }
                Err(reason) => self.rejected.push(format!("{formulation}: {reason}")),
            }
        }
        if self.candidate.is_none() {
            return Err(not_loaded.unwrap_or_else(|| handle.no_way(&self.desc, &self.rejected)));
        }
        self.reason = why.to_string();
        Ok(())
    }
}
