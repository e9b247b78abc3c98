//! [`GemmPlan::prepare`]: what must come before the first call that is captured into a graph.

use crate::error::{Error, Result};
use crate::format::{DType, GivenScale, Operand};
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut, driver};
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::desc::{Accumulate, OutAmax};
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::quantize_a::{QuantizeA, ScaleOfA};
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, VecRef};

impl GemmPlan {
    /// Everything that must come before a graph capture: reserves scratch memory, makes in B what the formulation needs there
    /// (the repeated scales, once for each B), and at the first call runs the product once on zeros, so that the driver has
    /// loaded its kernels.
    ///
    /// Allocates what it makes, and at the first call an A and a D that are freed in stream order; waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] if B is not as planned; [`Error::Unsupported`] on another handle, for a B on another GPU, or inside graph
    /// capture if there is work; [`Error::Driver`] if there is no memory.
    pub fn prepare(&mut self, handle: &Handle, b: &QuantMatrix) -> Result<()> {
        self.make_ready(handle, b)?;
        if self.kernels_loaded {
            return Ok(());
        }
        handle.refuse_capture("running a product once before capture")?;
        self.run_on_zeros(handle, b)?;
        self.kernels_loaded = true;
        Ok(())
    }

    /// The part of [`GemmPlan::prepare`] that concerns memory: scratch, and what is derived from B.
    pub(crate) fn make_ready(&self, handle: &Handle, b: &QuantMatrix) -> Result<()> {
        handle.check_own(self.handle_id, "preparing a plan")?;
        if (b.scheme(), b.rows(), b.cols()) != (self.desc.b, self.desc.n, self.desc.k) {
            return Err(Error::shape(
                "B",
                format!("{} x {} {}", b.rows(), b.cols(), b.scheme()),
                format!("must be {} x {} {}, as planned", self.desc.n, self.desc.k, self.desc.b),
                "plan for this B",
            ));
        }
        if b.code_order() != self.desc.b_order {
            return Err(Error::shape(
                "B",
                format!("codes that are {}", b.code_order()),
                format!("must be {}, as planned", self.desc.b_order),
                "call QuantMatrix::repack before GemmArgs::desc, or GemmDesc::with_b_order",
            ));
        }
        // Where nothing is left to be made, no use of B would say it.
        b.check_context(handle)?;
        if b.kept() != self.desc.kept {
            return Err(Error::shape(
                "B",
                format!("values kept in B: {:?}", b.kept()),
                format!("must be {:?}, as planned", self.desc.kept),
                "call QuantMatrix::keep_dequantized before GemmArgs::desc, or GemmDesc::with_kept",
            ));
        }
        handle.reserve_scratch(self.scratch_bytes())?;
        if self.repeated_scale_bytes() == 0 { Ok(()) } else { b.repeat_scales(handle) }
    }

    /// Kernels first loaded inside a capture break it now and then, while other threads capture too (observed: H200, driver
    /// 580, cuBLASLt 13.1.0, status 13).
    fn run_on_zeros(&mut self, handle: &Handle, b: &QuantMatrix) -> Result<()> {
        let desc = self.desc;
        if desc.is_empty() {
            return Ok(());
        }
        let zeros = |elements: usize, dtype: DType| {
            handle.stream().alloc_zeros::<u8>(elements * dtype.bytes()).map_err(|e| driver("allocating operands", e))
        };
        let mut d = zeros((desc.m - 1) * desc.out_stride + desc.n, desc.out)?;
        let target = MatMut::new(&mut d, desc.out, desc.m, desc.n)?.with_row_stride(desc.out_stride)?;
        let (plain, quantized);
        let args = match desc.given_a() {
            Operand::Quantized(scheme) => {
                quantized = QuantMatrix::zeros(handle, scheme, desc.m, desc.k)?;
                GemmArgs::new(&quantized, b, target)
            }
            Operand::Plain(dtype) => {
                // The given scale lies behind A, and is zero, too.
                let elements = (desc.m - 1) * desc.a_stride + desc.k;
                plain = zeros(elements + 16, dtype)?;
                let a = MatRef::new(&plain, dtype, desc.m, desc.k)?.with_row_stride(desc.a_stride)?;
                match desc.quantize_a {
                    None => GemmArgs::weight_only(a, b, target),
                    Some(QuantizeA { recipe, scale: ScaleOfA::Computed, .. }) => {
                        GemmArgs::quantize_a(a, recipe, b, target)
                    }
                    Some(QuantizeA { recipe, scale: ScaleOfA::Given, .. }) => {
                        let scale = GivenScale::Encode(DeviceBytes::from(plain.slice(elements * dtype.bytes()..)));
                        GemmArgs::quantize_a_by(a, recipe.format, scale, b, target)
                    }
                }
            }
        };
        let mut args = args
            .activation(desc.epilogue.activation)
            .accumulation(desc.accumulation)
            .batch_invariant(desc.batch_invariant)
            .chained(desc.chained);
        let bias = desc.epilogue.bias.map(|dtype| zeros(desc.n, dtype).map(|v| (v, dtype))).transpose()?;
        if let Some((bias, dtype)) = &bias {
            args = args.bias(VecRef::new(bias, *dtype, desc.n)?);
        }
        let residual =
            desc.epilogue.residual.map(|dtype| zeros(desc.m * desc.n, dtype).map(|v| (v, dtype))).transpose()?;
        if let Some((residual, dtype)) = &residual {
            args = args.residual(MatRef::new(residual, *dtype, desc.m, desc.n)?);
        }
        if desc.accumulate == Accumulate::Add {
            args = args.accumulate(1.0);
        }
        // A place 16-byte aligned for the factor, and one for the amax.
        let encode = zeros(4, DType::F32)?;
        let mut amax = zeros(4, DType::F32)?;
        if desc.out == DType::E4M3 {
            args = args.out_encode(DeviceBytes::from(encode.slice(..4)));
        }
        if desc.out_amax == OutAmax::Store {
            let mut amax = amax.slice_mut(..4);
            args = args.amax(DeviceBytesMut::from(&mut amax));
            return self.run(handle, &mut args);
        }
        self.run(handle, &mut args)
    }
}
