//! [`Handle::clear_between_groups`].

use super::GroupedRows;
use crate::error::{Error, Result};
use crate::gpu::device::memory::DeviceBytesMut;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::KernelFamily;
use crate::gpu::matrix::MatMut;

/// Rows of the tallest tile that has a scale, `fp8-128x128`'s, and numbers of the longest group along the rows of a transpose, `fp8-1x128`'s.
const TALLEST: usize = 128;

impl Handle {
    /// Sets all rows of X that belong to none of the groups to zero, those of groups stay: before casts whose tiles reach behind a group
    /// (`fp8-128x128`), before a scale of the whole matrix, and before gradients that sum over the rows of a slot
    /// ([`GroupedWeightGradient`](super::GroupedWeightGradient)).
    ///
    /// Groups begin at multiples of 128 rows, so that no scale of 128 rows is that of two: one that starts elsewhere is left out like any other whose numbers make no sense, its rows
    /// become zeros, and it is counted; slots of another length are refused. [`Handle::clear_between_groups_at`] has groups at multiples of less, for casts that have smaller tiles or none.
    ///
    /// `clamped`, 4 bytes, receives how many groups were not taken as their numbers say, as a `u32`: a count below 0, or above the rows that lie
    /// there; rows that begin outside of X, before an earlier group, or at no multiple of 128. What is between groups is decided on the device at each launch: nothing is
    /// read back. Once the kernels are loaded ([`KernelFamily::Grouped`]) it allocates nothing and waits for nothing: safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Shape`] for slots of no multiple of 128 rows, if X has fewer rows than all slots, there are fewer numbers than groups, or X, `clamped` and these numbers overlap; [`Error::Kernel`] if the kernels cannot be
    /// loaded; [`Error::Driver`] if the launch fails.
    pub fn clear_between_groups(
        &self,
        x: &mut MatMut<'_>,
        groups: usize,
        rows: &GroupedRows<'_>,
        clamped: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        self.clear_between_groups_at(TALLEST, x, groups, rows, clamped)
    }

    /// The same of groups that begin at multiples of `step` rows, a multiple of 4, as products take them: the rows that share a scale in the cast behind it. 4 where it has a scale for each row or one for all, 16 before
    /// NVFP4 in tiles of 16x16 and its transposes, 32 before transposes to MXFP8 and MXFP4. With a smaller step than that two groups may share a scale, which nobody sees.
    ///
    /// # Errors
    /// As [`Handle::clear_between_groups`], of slots of no multiple of `step` rows; [`Error::Shape`] for a step that is no multiple of 4, 0, or 2^31 and more.
    pub fn clear_between_groups_at(
        &self,
        step: usize,
        x: &mut MatMut<'_>,
        groups: usize,
        rows: &GroupedRows<'_>,
        clamped: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        check_step(step, rows.slot_rows())?;
        let (queue, kernels) = (self.queue(), self.kernels());
        kernels.load(queue, KernelFamily::Grouped)?;
        let order = queue.order();
        let (all, bytes, stride) = (x.rows(), x.cols() * x.dtype().bytes(), x.row_stride() * x.dtype().bytes());
        let x = x.data_mut().at(&order)?;
        let clamped = clamped.map(|clamped| clamped.at(&order)).transpose()?;
        rows.with_places(groups, &order, |places| {
            kernels.clear_between_groups(queue, &x, (all, bytes, stride), (&places, step), clamped.as_ref())
        })
    }
}

/// Refuses slots that begin elsewhere than at such rows; starts the device alone knows.
fn check_step(step: usize, slot_rows: Option<usize>) -> Result<()> {
    if step == 0 || !step.is_multiple_of(4) || step >= 1 << 31 {
        return Err(Error::shape(
            "rows that groups begin at multiples of",
            step.to_string(),
            format!("must be a multiple of 4, from 4 to {}", (1u32 << 31) - 4),
            "pass the rows that share a scale in the cast behind it: 4 where each row has its own",
        ));
    }
    match slot_rows {
        Some(slot_rows) if !slot_rows.is_multiple_of(step) => Err(Error::shape(
            "rows of X",
            format!("slots of {slot_rows}"),
            format!("must be a multiple of {step}: a scale of so many rows would be that of two groups"),
            "pass slots of a multiple of that, or fewer rows to Handle::clear_between_groups_at for a cast with smaller tiles or none",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_begin_where_tiles_do() {
        let refused = |step, slot_rows| check_step(step, slot_rows).map_or_else(|e| e.to_string(), |()| String::new());
        for (step, slot_rows) in [(128, 256), (128, 0), (4, 12), (16, 48)] {
            assert_eq!(refused(step, Some(slot_rows)), "");
        }
        // What the device alone knows it looks at.
        assert_eq!([refused(TALLEST, None), refused(4, None)], ["", ""]);
        for (step, slot_rows) in [(128, 64), (128, 132), (16, 24), (4, 6)] {
            let said = refused(step, Some(slot_rows));
            assert!(said.contains(&format!("slots of {slot_rows}")) && said.contains("two groups"), "{said}");
            assert!(said.contains("slots of a multiple of that"), "{said}");
        }
        for step in [0, 2, 6, 1 << 31] {
            assert!(refused(step, None).contains("must be a multiple of 4, from 4 to 2147483644"), "{step}");
        }
    }
}
