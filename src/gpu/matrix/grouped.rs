//! [`GroupedTensor`]: many matrices of codes in one buffer on the device, and [`GroupedDeviceLayout`]: where they lie, as the device knows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::format::{GroupedLayout, GroupedScheme, HostGroupedTensor};
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytes, DeviceBytesMut, Span};
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{GroupedCodes, KernelFamily};

/// Where the members of grouped tensors lie, in device memory: rows, columns and offsets, a number of eight bytes a member each.
///
/// The host knows how many members there are and how long the buffers are at the most, the device all else. What the device's numbers say
/// may change from call to call and between launches of one captured graph, and nobody reads it back. Member t may use the elements from
/// its offset to that of the next, the last up to the end of the buffer. Rows that do not fit are left out, and so is all of a member whose
/// numbers are negative, or whose offset is below an earlier one's; [`GroupedDeviceLayout::clamped`] counts such members. Nothing outside
/// the buffers is read or written, whatever the numbers say, and members never overlap.
pub struct GroupedDeviceLayout {
    members: usize,
    buffer_len: usize,
    rows: DeviceBuffer,
    cols: DeviceBuffer,
    offsets: DeviceBuffer,
    clamped: DeviceBuffer,
    /// Shared by all who share the numbers.
    known: Arc<Mutex<Known>>,
}

/// What the host knows of numbers on the device, without reading them back.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// What it wrote last.
    pub(super) written: Option<Arc<GroupedLayout>>,
    /// Rows, columns and offsets that somebody else may write, from now on at any time: they were handed out to be written, or a captured graph writes them.
    pub(super) lent: [bool; 3],
}

/// The addresses of a layout for one piece of work.
pub(crate) struct GroupedPlaces<'s> {
    pub(crate) rows: Span<'s>,
    pub(crate) cols: Span<'s>,
    pub(crate) offsets: Span<'s>,
}

impl GroupedDeviceLayout {
    /// Copies a layout to the device. Its buffer is the longest that there will be. Allocates.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is not enough memory; [`Error::Unsupported`] inside graph capture.
    pub fn from_host(handle: &Handle, layout: &GroupedLayout) -> Result<Self> {
        handle.refuse_capture("allocating a GroupedDeviceLayout")?;
        let members = layout.members().len();
        let [rows, cols, offsets] = DeviceBuffer::zeros_together(handle.queue(), [members * 8; 3])?;
        let mut device = Self::from_parts(handle, rows, cols, offsets, layout.buffer_len())?;
        device.write(handle, layout)?;
        Ok(device)
    }

    /// A layout from its numbers, 64-bit integers, one for each member: rows, columns, and offsets in elements. `buffer_len` is the length
    /// of the buffers in elements at the most. Copies and reads nothing; allocates the count of clamped members.
    ///
    /// # Errors
    /// [`Error::Shape`] unless the three have as many numbers, or for a longer buffer than `isize::MAX / 8`; [`Error::Alignment`] unless each
    /// begins at a multiple of 8 bytes; [`Error::Driver`]; [`Error::Unsupported`] inside graph capture.
    pub fn from_parts(
        handle: &Handle,
        rows: DeviceBuffer,
        cols: DeviceBuffer,
        offsets: DeviceBuffer,
        buffer_len: usize,
    ) -> Result<Self> {
        // What a layout of the host may be, this may be.
        GroupedLayout::new(&[], &[], buffer_len)?;
        let members = rows.len() / 8;
        for (what, buffer) in [("rows", &rows), ("columns", &cols), ("offsets", &offsets)] {
            let operand = format!("{what} of a grouped layout");
            if buffer.len() != members * 8 {
                return Err(Error::shape(
                    operand,
                    format!("{} bytes", buffer.len()),
                    format!("must be {}, 8 for each of {members} members", members * 8),
                    "pass as many rows, columns and offsets; the end of the last member is no offset",
                ));
            }
            if members > 0 && !buffer.address().is_multiple_of(8) {
                let remedy = "start the buffer at the allocation, or at a multiple of 8 bytes".into();
                return Err(Error::Alignment { operand, address: buffer.address(), required: 8, remedy });
            }
        }
        let clamped = handle.alloc(4)?;
        let lent = [&rows, &cols, &offsets].map(DeviceBuffer::written_by_graphs);
        let known = Arc::new(Mutex::new(Known { written: None, lent }));
        Ok(Self { members, buffer_len, rows, cols, offsets, clamped, known })
    }

    /// The same numbers in the same memory, for another tensor of the same members: what changes here changes there. Copies nothing.
    ///
    /// # Errors
    /// None today.
    pub fn share(&self) -> Result<Self> {
        let same = |buffer: &DeviceBuffer| buffer.part(0..buffer.len());
        Ok(Self {
            members: self.members,
            buffer_len: self.buffer_len,
            rows: same(&self.rows)?,
            cols: same(&self.cols)?,
            offsets: same(&self.offsets)?,
            clamped: same(&self.clamped)?,
            known: self.known.clone(),
        })
    }

    /// Replaces the numbers by those of a layout with as many members, whose buffer is not longer. In stream order: graphs that are launched
    /// from now on find them. Allocates on the host alone, and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of members, or a longer buffer; [`Error::Unsupported`] inside graph capture.
    pub fn write(&mut self, handle: &Handle, layout: &GroupedLayout) -> Result<()> {
        if layout.members().len() != self.members || layout.buffer_len() > self.buffer_len {
            return Err(Error::shape(
                "layout of a grouped tensor",
                format!("{} members in {} elements", layout.members().len(), layout.buffer_len()),
                format!("must be {} members in at most {} elements", self.members, self.buffer_len),
                "plan for the longest buffer, and list members without rows too",
            ));
        }
        let numbers = |of: fn(&crate::format::GroupedMember) -> usize| -> Vec<i64> {
            layout.members().iter().map(|member| i64::try_from(of(member)).unwrap_or(i64::MAX)).collect()
        };
        // No call of another thread finds one without the others.
        let _turn = handle.queue().turn();
        // If a copy fails, nobody knows which numbers are there.
        self.state().written = None;
        handle.write(&mut self.rows.view_mut(), &numbers(|member| member.rows()))?;
        handle.write(&mut self.cols.view_mut(), &numbers(|member| member.cols()))?;
        handle.write(&mut self.offsets.view_mut(), &numbers(|member| member.offset()))?;
        self.state().written = Some(Arc::new(layout.clone()));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the host knows of the numbers.
    pub(super) fn known(&self) -> Known {
        self.state().clone()
    }

    /// The layout, on the host. Waits for the handle's stream; allocates there.
    ///
    /// # Errors
    /// [`Error::Shape`] if a kernel would clamp a member; [`Error::Driver`]; [`Error::Unsupported`] inside graph capture.
    pub fn to_host(&self, handle: &Handle) -> Result<GroupedLayout> {
        let read = |name: &str, buffer: &DeviceBuffer| -> Result<Vec<usize>> {
            let numbers: Vec<i64> = handle.read(&buffer.view())?;
            let number = |(t, number): (usize, &i64)| {
                usize::try_from(*number).map_err(|_| {
                    let operand = format!("{name} of member {t} of a grouped tensor");
                    Error::shape(operand, number.to_string(), "must not be negative", "write it to the device again")
                })
            };
            numbers.iter().enumerate().map(number).collect()
        };
        let _turn = handle.queue().turn();
        let (rows, cols) = (read("rows", &self.rows)?, read("columns", &self.cols)?);
        let shapes: Vec<_> = rows.into_iter().zip(cols).map(|(rows, cols)| [rows, cols]).collect();
        GroupedLayout::new(&shapes, &read("offset", &self.offsets)?, self.buffer_len)
    }

    /// How many members the last call that used the layout did not take as they say: 0 for what [`GroupedLayout`] admits. Waits for the
    /// handle's stream.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Unsupported`] inside graph capture.
    pub fn clamped(&self, handle: &Handle) -> Result<usize> {
        let count: Vec<u32> = handle.read(&self.clamped.view())?;
        Ok(count[0] as usize)
    }

    /// Members, those without elements too.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Elements of a buffer, gaps included.
    pub fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// Rows as the device has them, 64-bit integers: the counts of [`GroupedRows`](crate::GroupedRows) where members begin where its groups do
    /// ([`GroupedTensor::padded_rows`]).
    pub fn rows(&self) -> DeviceBytes<'_> {
        self.rows.view()
    }

    /// Rows, to be written: 64-bit integers. From now on the device alone knows them: of this layout and those that share its numbers there is no
    /// [`GroupedTensor::stacked`] any more.
    pub fn rows_mut(&mut self) -> DeviceBytesMut<'_> {
        self.state().lent[0] = true;
        self.rows.view_mut()
    }

    /// Columns, to be written: 64-bit integers. From now on the device alone knows them: of this layout and those that share its numbers there is neither
    /// [`GroupedTensor::stacked`] nor [`GroupedTensor::padded_rows`] any more, and [`GroupedTensor::padded_rows_of`] takes the columns that it is told.
    pub fn cols_mut(&mut self) -> DeviceBytesMut<'_> {
        self.state().lent[1] = true;
        self.cols.view_mut()
    }

    /// Offsets in elements, to be written: 64-bit integers. From now on the device alone knows them: there is no [`GroupedTensor::stacked`] any more, and [`GroupedTensor::padded_rows`] does not compare them
    /// with where a product is told that groups begin.
    pub fn offsets_mut(&mut self) -> DeviceBytesMut<'_> {
        self.state().lent[2] = true;
        self.offsets.view_mut()
    }

    /// How many members the last call clamped, as a `u32`, for kernels of others.
    pub fn clamped_count(&self) -> DeviceBytes<'_> {
        self.clamped.view()
    }

    /// Whether both are the same numbers in the same memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let places = |of: &Self| [of.rows.address(), of.cols.address(), of.offsets.address()];
        let none = self.members == 0;
        self.members == other.members && self.buffer_len == other.buffer_len && (none || places(self) == places(other))
    }

    /// The addresses for work that reads the numbers.
    pub(crate) fn read<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<GroupedPlaces<'s>> {
        let Self { rows, cols, offsets, .. } = self;
        Ok(GroupedPlaces { rows: rows.read(order)?, cols: cols.read(order)?, offsets: offsets.read(order)? })
    }

    /// Where the count goes.
    pub(crate) fn count<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<Span<'s>> {
        self.clamped.write(order)
    }
}

/// Matrices of codes in one buffer on the device, with a scale for each or one for all: `value = code * scale` of the member.
///
/// Codes are `layout.buffer_len()` bytes in the order that [`GroupedScheme`] says, scales FP32 decode factors. Gaps hold anything: no
/// call reads or writes them. Products of groups read it as [`GroupedTensor::padded_rows`] and [`GroupedTensor::stacked`].
///
/// `Send` and `Sync`, ordered by events of its own like a [`QuantMatrix`](crate::QuantMatrix).
pub struct GroupedTensor {
    pub(super) scheme: GroupedScheme,
    pub(super) layout: GroupedDeviceLayout,
    pub(super) codes: DeviceBuffer,
    pub(super) scales: DeviceBuffer,
}

/// The addresses of codes and scales for one piece of work.
pub(crate) struct GroupedSpans<'s> {
    codes: Span<'s>,
    scales: Span<'s>,
}

impl GroupedSpans<'_> {
    pub(crate) fn of_kernels(&self) -> GroupedCodes<'_> {
        GroupedCodes { codes: &self.codes, scales: &self.scales }
    }
}

impl GroupedTensor {
    /// A tensor of zero codes and zero scales. Allocates, and loads the kernels of grouped tensors, so that a capture finds them there.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is not enough memory; [`Error::Unsupported`] inside graph capture; [`Error::Kernel`].
    pub fn zeros(handle: &Handle, scheme: GroupedScheme, layout: GroupedDeviceLayout) -> Result<Self> {
        handle.refuse_capture("allocating a GroupedTensor")?;
        handle.kernels().load(handle.queue(), KernelFamily::Grouped)?;
        let lengths = [layout.buffer_len, scheme.scales().count(layout.members) * 4];
        let [codes, scales] = DeviceBuffer::zeros_together(handle.queue(), lengths)?;
        Ok(Self { scheme, layout, codes, scales })
    }

    /// A tensor from its buffers. Copies and reads nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are not `layout.buffer_len()` codes, or not as many scales as the scheme says; [`Error::Alignment`] unless
    /// each begins at a multiple of 16 bytes.
    pub fn from_parts(
        scheme: GroupedScheme,
        layout: GroupedDeviceLayout,
        codes: DeviceBuffer,
        scales: DeviceBuffer,
    ) -> Result<Self> {
        if codes.len() != layout.buffer_len {
            return Err(Error::shape(
                "codes of a grouped tensor",
                format!("{} bytes", codes.len()),
                format!("must be the {} elements of its layout", layout.buffer_len),
                "pass the whole buffer, gaps included",
            ));
        }
        let floats = if scales.len().is_multiple_of(4) { scales.len() / 4 } else { usize::MAX };
        scheme.scales().check_count("scales of a grouped tensor", layout.members, floats)?;
        for (what, buffer) in [("codes", &codes), ("scales", &scales)] {
            if !buffer.is_empty() && !buffer.address().is_multiple_of(16) {
                let remedy = "start the buffer at the allocation, or at a multiple of 16 bytes".into();
                let operand = format!("{what} of a grouped tensor");
                return Err(Error::Alignment { operand, address: buffer.address(), required: 16, remedy });
            }
        }
        Ok(Self { scheme, layout, codes, scales })
    }

    /// Copies a host tensor to the device, with its layout. Allocates.
    ///
    /// # Errors
    /// As [`GroupedTensor::zeros`].
    pub fn from_host(handle: &Handle, host: &HostGroupedTensor) -> Result<Self> {
        let layout = GroupedDeviceLayout::from_host(handle, host.layout())?;
        let mut tensor = Self::zeros(handle, host.scheme(), layout)?;
        handle.write(&mut tensor.codes.view_mut(), host.codes())?;
        handle.write(&mut tensor.scales.view_mut(), host.scales())?;
        Ok(tensor)
    }

    /// Copies the tensor to the host, with the layout that the device has now; gaps become zero. Waits for the handle's stream.
    ///
    /// # Errors
    /// As [`GroupedDeviceLayout::to_host`].
    pub fn to_host(&self, handle: &Handle) -> Result<HostGroupedTensor> {
        let layout = self.layout.to_host(handle)?;
        let (codes, scales) = (handle.read(&self.codes())?, handle.read(&self.scales())?);
        HostGroupedTensor::from_parts(self.scheme, layout, codes, scales)
    }

    /// How it is read.
    pub fn scheme(&self) -> GroupedScheme {
        self.scheme
    }

    /// Where members lie. Shapes are those of the data, also where members are stored transposed.
    pub fn layout(&self) -> &GroupedDeviceLayout {
        &self.layout
    }

    /// The same, to be written.
    pub fn layout_mut(&mut self) -> &mut GroupedDeviceLayout {
        &mut self.layout
    }

    /// The codes, gaps included.
    pub fn codes(&self) -> DeviceBytes<'_> {
        self.codes.view()
    }

    /// The decode factors, FP32: one for each member, or one for all.
    pub fn scales(&self) -> DeviceBytes<'_> {
        self.scales.view()
    }

    /// The codes, to be written.
    pub fn codes_mut(&mut self) -> DeviceBytesMut<'_> {
        self.codes.view_mut()
    }

    /// The decode factors, to be written.
    pub fn scales_mut(&mut self) -> DeviceBytesMut<'_> {
        self.scales.view_mut()
    }

    /// The addresses of codes and scales for work that reads them.
    pub(crate) fn read<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<GroupedSpans<'s>> {
        Ok(GroupedSpans { codes: self.codes.read(order)?, scales: self.scales.read(order)? })
    }

    /// The same for work that writes them, to be called where the tensor is borrowed as a whole.
    pub(crate) fn write<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<GroupedSpans<'s>> {
        Ok(GroupedSpans { codes: self.codes.write(order)?, scales: self.scales.write(order)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_shared_among_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<GroupedTensor>();
    }
}
