//! [`GroupedGemmArgs::clamped`]: how many groups were not taken as their numbers say.

use super::{GroupedGemmArgs, GroupedRows};
use crate::error::{Error, Result};
use crate::gpu::device::memory::DeviceBytesMut;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::KernelFamily;

/// Before a product: refuses memory that holds no count, and loads the kernel that counts.
pub(super) fn check_clamped(handle: &Handle, clamped: Option<&mut DeviceBytesMut<'_>>) -> Result<()> {
    let Some(clamped) = clamped else { return Ok(()) };
    if clamped.len() < 4 {
        let found = format!("{} bytes", clamped.len());
        return Err(Error::shape("count of clamped groups", found, "must be 4", "pass memory of a u32"));
    }
    let order = handle.queue().order();
    let address = clamped.at(&order)?.address;
    drop(order);
    if !address.is_multiple_of(4) {
        return Err(Error::Alignment {
            operand: "count of clamped groups".to_string(),
            address,
            required: 4,
            remedy: "pass memory of a u32".to_string(),
        });
    }
    handle.kernels().load(handle.queue(), KernelFamily::Grouped)
}

/// Behind a product, so that one that is refused leaves no count: how many of these groups of so many rows, or numbers along k, it did not take as their
/// numbers say, whose groups begin at multiples of `step`.
pub(super) fn count_clamped(
    handle: &Handle,
    (groups, rows): (usize, &GroupedRows<'_>),
    (step, held): (usize, usize),
    clamped: Option<&mut DeviceBytesMut<'_>>,
) -> Result<()> {
    let Some(clamped) = clamped else { return Ok(()) };
    let (queue, kernels) = (handle.queue(), handle.kernels());
    let order = queue.order();
    let clamped = clamped.at(&order)?;
    rows.with_places(groups, &order, |places| kernels.count_clamped_groups(queue, (step, held), &places, &clamped))
}

impl GroupedGemmArgs<'_> {
    /// The same of this product, whose groups begin at multiples of `step`.
    pub(super) fn count_clamped(&mut self, handle: &Handle, step: usize) -> Result<()> {
        let Self { a, groups, rows, clamped, .. } = self;
        count_clamped(handle, (*groups, rows), (step, a.rows()), clamped.as_mut())
    }
}
