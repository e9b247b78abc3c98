//! [`Handle::zero`].

use super::MatMut;
use crate::error::Result;
use crate::gpu::handle::Handle;

impl Handle {
    /// Sets all elements of a matrix to zero; what lies between its rows stays. Of a dW that gradients are added to, say
    /// ([`GroupedWeightGradient`](crate::GroupedWeightGradient)). Allocates nothing and waits for nothing: safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the call fails.
    pub fn zero(&self, x: &mut MatMut<'_>) -> Result<()> {
        let (rows, size) = (x.rows(), x.dtype().bytes());
        let (row_bytes, stride) = (x.cols() * size, x.row_stride() * size);
        let order = self.queue().order();
        self.kernels().zero_2d(self.queue(), &x.data_mut().at(&order)?, stride, rows, row_bytes)
    }
}
