//! [`Handle::clear_between_groups`].

use super::GroupedRows;
use crate::error::{Error, Result};
use crate::gpu::device::memory::DeviceBytesMut;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::KernelFamily;
use crate::gpu::matrix::MatMut;

impl Handle {
    /// Sets all rows of X that belong to none of the groups to zero, those of groups stay: before casts whose tiles reach behind a group
    /// (`fp8-128x128`), before a scale of the whole matrix, and before gradients that sum over the rows of a slot
    /// ([`GroupedWeightGradient`](super::GroupedWeightGradient)).
    ///
    /// `clamped`, 4 bytes, receives how many groups were not taken as their numbers say, as a `u32`: a count below 0, or above the rows that lie
    /// there; rows that begin outside of X, before an earlier group, or at no multiple of 4. What is between groups is decided on the device at each launch: nothing is
    /// read back. Once the kernels are loaded ([`KernelFamily::Grouped`]) it allocates nothing and waits for nothing: safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Shape`] if X has fewer rows than all slots, there are fewer numbers than groups, or X, `clamped` and these numbers overlap; [`Error::Kernel`] if the kernels cannot be
    /// loaded; [`Error::Driver`] if the launch fails.
    pub fn clear_between_groups(
        &self,
        x: &mut MatMut<'_>,
        groups: usize,
        rows: &GroupedRows<'_>,
        clamped: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        if let GroupedRows::Masked { slot_rows, .. } = rows
            && !slot_rows.is_multiple_of(4)
        {
            let found = format!("slots of {slot_rows}");
            return Err(Error::shape(
                "rows of X",
                found,
                "must be a multiple of 4",
                "pass slots as the product has them",
            ));
        }
        let (queue, kernels) = (self.queue(), self.kernels());
        kernels.load(queue, KernelFamily::Grouped)?;
        let order = queue.order();
        let (all, bytes, stride) = (x.rows(), x.cols() * x.dtype().bytes(), x.row_stride() * x.dtype().bytes());
        let x = x.data_mut().at(&order)?;
        let clamped = clamped.map(|clamped| clamped.at(&order)).transpose()?;
        rows.with_places(groups, &order, |places| {
            kernels.clear_between_groups(queue, &x, (all, bytes, stride), &places, clamped.as_ref())
        })
    }
}
