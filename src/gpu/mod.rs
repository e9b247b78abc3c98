//! How it runs: quantizers, plans and products on NVIDIA GPUs, with CUDA's libraries loaded at run time.
//!
//! Bottom to top: [`Handle`] (one stream and what work on it needs), [`QuantMatrix`], the quantizers
//! ([`Handle::quantize`]), then [`GemmDesc`] and [`GemmPlan`].

mod cast;
mod clocks;
mod device;
mod fused_gemm;
mod gemm;
mod grouped;
mod handle;
mod kernels;
mod linear;
mod lt;
mod matrix;
mod measure;

pub use cast::backward::{GradientInto, SwigluGradientsInto};
pub use cast::grouped::{GroupedSource, GroupedTo};
pub use cast::groups::{CastBytes, cast_bytes};
pub use cast::norm::RmsNormArgs;
pub use cast::quantize::{QuantizeTo, quantize_bytes};
pub use cast::source::{CastSource, RowIndex, SourceActivation, SwigluSource};
pub use clocks::{ClockWatch, Clocks};
pub use device::graph::CapturedGraph;
pub use device::info::DeviceInfo;
pub use device::memory::{BorrowsOutliveGraph, DeviceBuffer, DeviceBytes, DeviceBytesMut, Element};
pub use fused_gemm::{FusedGemmArgs, FusedOut};
pub use gemm::args::GemmArgs;
pub use gemm::baseline::Bf16Gemm;
pub use gemm::choose::Offer;
pub use gemm::desc::{Accumulate, Accumulation, GemmDesc, OutAmax};
pub use gemm::formulation::{Finish, Formulation};
pub use gemm::plan::{GemmPlan, PlanOptions};
pub use gemm::quantize_a::{QuantizeA, ScaleOfA};
pub use gemm::record::table::TuneTable;
pub use gemm::record::{Algorithm, Environment, LtAlgorithm, TuneRecord};
pub use gemm::rescale::RescaleArgs;
pub use gemm::tune::{CacheState, Trial, TuneOptions, TuneReport, Verdict};
pub use grouped::{
    GroupedGemmArgs, GroupedGemmDesc, GroupedGemmPlan, GroupedOperand, GroupedRows, GroupedWeightGradient,
};
pub use handle::{Handle, LibraryInfo};

pub use kernels::{KernelFamily, KernelSource, Sm90Config, SmallMBlock, SmallMConfig, SmallMOperands};
pub use linear::{Linear, LinearGradientsInto, QuantizedGradient, SavedInput};
pub use matrix::{
    CastMatrix, GroupedDeviceLayout, GroupedMatrix, GroupedTensor, KeptWeights, MatMut, MatRef, Parts, QuantMatrix,
    VecRef,
};
pub use measure::{Cadence, Times, Timing, copy};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_hold_is_shared_among_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Linear>();
        shared::<SavedInput>();
        shared::<QuantizedGradient>();
        shared::<GemmPlan>();
        shared::<GroupedGemmPlan>();
        shared::<Bf16Gemm>();
        shared::<TuneTable>();
        shared::<PlanOptions>();
        shared::<QuantMatrix>();
        shared::<CastMatrix>();
        shared::<GroupedTensor>();
        shared::<GroupedDeviceLayout>();
        shared::<DeviceBuffer>();
        shared::<DeviceInfo>();
        shared::<ClockWatch>();
        shared::<MatRef<'_>>();
        shared::<MatMut<'_>>();
        shared::<VecRef<'_>>();
        shared::<GemmArgs<'_>>();
        shared::<GroupedGemmArgs<'_>>();
        shared::<LinearGradientsInto<'_>>();
    }

    #[test]
    fn a_handle_and_its_graphs_move_to_another_thread() {
        fn moves<T: Send>() {}
        moves::<Handle>();
        moves::<CapturedGraph>();
    }
}
