//! [`QuantMatrix::repack`]: another order of the codes, in place.

use crate::error::{Error, Result};
use crate::format::CodeOrder;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::QuantMatrix;

impl QuantMatrix {
    /// Puts the codes into this order, in place, exactly and reversibly: NVFP4 weights of products with few rows are decoded in fewer operations from
    /// [`CodeOrder::Repacked`]. Products by [`Formulation::SmallM`](crate::Formulation) have the same bits in the same configuration; the planner may choose another one for repacked codes.
    ///
    /// Scales stay where they are, and so do values that the matrix [keeps](QuantMatrix::keep_dequantized). Products of any number of plain or NVFP4 rows of A read repacked
    /// codes ([`Formulation::DequantizedBf16`](crate::Formulation) those of many), and so do groups of plain or NVFP4 rows, SwiGLU of plain rows ([`FusedGemmArgs::swiglu_weight_only`](crate::FusedGemmArgs::swiglu_weight_only)), [`Handle::dequantize_into`] and [`QuantMatrix::to_host`], which gives the
    /// published order, as files have it. Everything else refuses them, writers too; the remedy is `repack` with [`CodeOrder::Published`]. Memory that several matrices share
    /// (`DeviceBuffer::from_raw`) only one of them may repack.
    ///
    /// Allocates nothing and waits for nothing; a first use loads kernels, as in [`Handle::quantize`]. A matrix that lies so already is left as it is.
    ///
    /// ```no_run
    /// use scaled_gemm::{CodeOrder, Handle, QuantMatrix, Result};
    ///
    /// fn for_decode(handle: &Handle, weights: &mut [QuantMatrix]) -> Result<()> {
    ///     weights.iter_mut().try_for_each(|weight| weight.repack(handle, CodeOrder::Repacked))
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`CodeOrder::check`]; [`Error::Unsupported`] inside graph capture, or for a matrix that a captured graph uses: its launches know the order that it had;
    /// [`Error::Driver`], [`Error::Kernel`].
    pub fn repack(&mut self, handle: &Handle, order: CodeOrder) -> Result<()> {
        order.check(self.scheme(), self.rows(), self.cols())?;
        if order == self.code_order() {
            return Ok(());
        }
        handle.refuse_capture("repacking a matrix")?;
        if self.used_by_graphs() {
            return Err(Error::unsupported(
                format!("repacking a {} x {} {} matrix", self.rows(), self.cols(), self.scheme()),
                format!("a captured graph uses it, and its launches read codes that are {}", self.code_order()),
                "repack it before the capture, or take a copy for the other order",
            ));
        }
        let queue = handle.queue();
        let _turn = queue.turn();
        {
            let launch = queue.order();
            let codes = self.write_codes(&launch)?;
            handle.kernels().repack(queue, (self.rows(), self.cols()), &codes, order)?;
        }
        self.set_code_order(order);
        Ok(())
    }
}
