//! [`QuantMatrix`]: codes, scales and scheme as one value.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{Basis, CodeFormat, CodeOrder, HostParts, HostQuantMatrix, Scheme};
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytes, DeviceBytesMut, Element, Span};
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::derived::Derived;

/// A quantized `rows x cols` matrix on the device: `value[i, j] = code[i, j] * block_scale[i, block] * scale[group of (i, j)]`.
///
/// Codes are row-major and packed (two E2M1 codes a byte, the even column in the low half), unless [`QuantMatrix::repack`] put them into
/// another [order](CodeOrder), rows padded with zeros to the
/// scheme's row multiple ([`SchemeSpec::row_multiple`](crate::format::SchemeSpec::row_multiple)); FP32 scales and byte block
/// scales lie in the order the GEMM reads ([`ScaleLayout`](crate::format::layout::ScaleLayout)). Codes, scales and scheme travel
/// as this one value; the lengths were checked when it was built.
///
/// `Send` and `Sync`: several handles, on several streams, may read one matrix. Their work is ordered against writes to it, and
/// against its being dropped, by events of its own ([`DeviceBuffer`]).
pub struct QuantMatrix {
    scheme: Scheme,
    rows: usize,
    cols: usize,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    block_scales: DeviceBuffer,
    basis: Basis,
    code_order: CodeOrder,
    pub(super) derived: Derived,
}

/// The buffers of a [`QuantMatrix`], in device order; empty where its scheme has none of a kind.
pub struct Parts<T> {
    /// `scheme.code_bytes(rows, cols)` bytes.
    pub codes: T,
    /// `scheme.scale_len(rows, cols)` FP32 numbers.
    pub scales: T,
    /// `scheme.block_scale_len(rows, cols)` bytes.
    pub block_scales: T,
}

/// The addresses of a matrix for one piece of work.
#[derive(Clone, Copy)]
pub(crate) struct QuantSpans<'s> {
    pub(crate) codes: Span<'s>,
    pub(crate) scales: Span<'s>,
    pub(crate) block_scales: Span<'s>,
}

impl<'s> QuantSpans<'s> {
    pub(crate) fn all(&self) -> [&Span<'s>; 3] {
        [&self.codes, &self.scales, &self.block_scales]
    }

    /// Those of some rows of the matrix, of which [`QuantMatrix::rows_part`] gives a part.
    pub(crate) fn rows_part(&self, scheme: Scheme, cols: usize, rows: Range<usize>) -> Self {
        let [codes, scales, block_scales] = places_of_rows(scheme, cols, rows, self.scales.bytes);
        let part = |span: Span<'s>, at: Range<usize>| span.slice(at.start, at.len());
        Self {
            codes: part(self.codes, codes),
            scales: part(self.scales, scales),
            block_scales: part(self.block_scales, block_scales),
        }
    }
}

/// Whether the scales of rows lie together, so that [`QuantMatrix::rows_part`] has some of them.
pub(crate) fn rows_lie_together(scheme: Scheme) -> bool {
    scheme.spec().scale_layout != ScaleLayout::Vec128
}

/// Bytes of codes, scales and block scales of some rows, the first of which is at a multiple of 128, of a matrix with so many bytes of scales.
fn places_of_rows(scheme: Scheme, cols: usize, rows: Range<usize>, scale_bytes: usize) -> [Range<usize>; 3] {
    let [before, own] = [rows.start, rows.len()].map(|rows| part_bytes(scheme, rows, cols));
    let [codes, scales, block_scales] = std::array::from_fn(|i| before[i]..before[i] + own[i]);
    // One scale of all rows is that of some.
    let one = scheme.spec().scale_layout == ScaleLayout::Scalar;
    [codes, if one { 0..scale_bytes } else { scales }, block_scales]
}

/// Bytes of codes, scales and block scales in device order.
fn part_bytes(scheme: Scheme, rows: usize, cols: usize) -> [usize; 3] {
    [scheme.code_bytes(rows, cols), scheme.scale_len(rows, cols) * 4, scheme.block_scale_len(rows, cols)]
}

impl QuantMatrix {
    /// A matrix of zero codes and zero scales. Allocates on the handle's stream, and loads the kernels that cast to and from the
    /// scheme, so that a capture finds them there.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is not enough memory; [`Error::Unsupported`] inside graph capture; [`Error::Kernel`].
    pub fn zeros(handle: &Handle, scheme: Scheme, rows: usize, cols: usize) -> Result<Self> {
        handle.refuse_capture("allocating a QuantMatrix")?;
        check_size(scheme, rows, cols)?;
        handle.kernels().load_casts(handle.queue(), scheme)?;
        let lengths = part_bytes(scheme, rows, cols);
        let [codes, scales, block_scales] = DeviceBuffer::zeros_together(handle.queue(), lengths)?;
        Ok(Self::of_published(scheme, [rows, cols], [codes, scales, block_scales]))
    }

    fn of_published(
        scheme: Scheme,
        [rows, cols]: [usize; 2],
        [codes, scales, block_scales]: [DeviceBuffer; 3],
    ) -> Self {
        let (basis, code_order, derived) = (Basis::Plain, CodeOrder::Published, Derived::default());
        Self { scheme, rows, cols, codes, scales, block_scales, basis, code_order, derived }
    }

    /// A matrix from its buffers, as [`QuantMatrix`] describes them; `None` where the scheme has none of a kind. Nothing is
    /// copied or read.
    ///
    /// [`DeviceBuffer::from_slice`] takes over cudarc's slices, `DeviceBuffer::from_raw` the memory of other runtimes. Padding
    /// (rows of codes, scales of both kinds) must be zero; the contents are not checked.
    ///
    /// # Errors
    /// [`Error::Shape`] if a buffer is not exactly as long as the scheme says; [`Error::Alignment`] unless each begins at a
    /// multiple of 16 bytes.
    pub fn from_parts(
        scheme: Scheme,
        rows: usize,
        cols: usize,
        codes: DeviceBuffer,
        scales: Option<DeviceBuffer>,
        block_scales: Option<DeviceBuffer>,
    ) -> Result<Self> {
        let of = |buffer: &Option<DeviceBuffer>| buffer.as_ref().map_or((0, 0), |b| (b.address(), b.len()));
        let found = [(codes.address(), codes.len()), of(&scales), of(&block_scales)];
        check_parts(scheme, rows, cols, found)?;
        let scales = scales.map_or_else(|| codes.part(0..0), Ok)?;
        let block_scales = block_scales.map_or_else(|| codes.part(0..0), Ok)?;
        Ok(Self::of_published(scheme, [rows, cols], [codes, scales, block_scales]))
    }

    /// Copies a host matrix to the device, byte for byte. Allocates.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is not enough memory; [`Error::Unsupported`] inside graph capture.
    pub fn from_host(handle: &Handle, host: &HostQuantMatrix) -> Result<Self> {
        let mut matrix = Self::zeros(handle, host.scheme(), host.rows(), host.cols())?.assume_basis(host.basis());
        let Parts { mut codes, mut scales, mut block_scales } = matrix.parts();
        handle.write(&mut codes, host.codes())?;
        handle.write(&mut scales, host.scales())?;
        handle.write(&mut block_scales, host.block_scales())?;
        Ok(matrix)
    }

    /// Copies the matrix to the host, byte for byte; repacked codes come in their published order. Waits for the handle's stream.
    ///
    /// # Errors
    /// [`Error::Driver`] if the copy fails; [`Error::Unsupported`] inside graph capture.
    pub fn to_host(&self, handle: &Handle) -> Result<HostQuantMatrix> {
        self.to_host_in(handle, HostParts::default())
    }

    /// The same in the memory of `parts`, whose contents are replaced: nothing is allocated where it has room. Waits for the
    /// handle's stream.
    ///
    /// # Errors
    /// As [`QuantMatrix::to_host`].
    pub fn to_host_in(&self, handle: &Handle, parts: HostParts) -> Result<HostQuantMatrix> {
        fn read<T: Element>(handle: &Handle, from: &DeviceBytes<'_>, mut into: Vec<T>) -> Result<Vec<T>> {
            into.resize(from.len() / size_of::<T>(), T::default());
            handle.read_into(from, &mut into)?;
            Ok(into)
        }
        let mut codes = read(handle, &self.codes(), parts.codes)?;
        self.code_order.unpack(self.scheme, self.rows, self.cols, &mut codes)?;
        let scales = read(handle, &self.scales(), parts.scales)?;
        let block_scales = read(handle, &self.block_scales(), parts.block_scales)?;
        let parts = HostParts { codes, scales, block_scales, basis: self.basis };
        HostQuantMatrix::from_parts(self.scheme, self.rows, self.cols, parts)
    }

    /// The same matrix, said to be in this basis. Nothing is transformed.
    pub fn assume_basis(self, basis: Basis) -> Self {
        Self { basis, ..self }
    }

    /// How codes and scales are read.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The basis of the rows: that of the data, or a Hadamard transform of it.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// The quantizers say in which basis they wrote the rows.
    pub(crate) fn set_basis(&mut self, basis: Basis) {
        self.basis = basis;
    }

    /// Number of logical rows (padding not counted).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the length along which the GEMM sums.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How the codes lie: as published, unless [`QuantMatrix::repack`] changed that.
    pub fn code_order(&self) -> CodeOrder {
        self.code_order
    }

    /// The codes as they lie ([`QuantMatrix::code_order`]): row-major, unless they are repacked, padding rows included.
    pub fn codes(&self) -> DeviceBytes<'_> {
        self.codes.view()
    }

    /// The FP32 scales, in device order.
    pub fn scales(&self) -> DeviceBytes<'_> {
        self.scales.view()
    }

    /// The block scales, one byte each, in device order; empty if the scheme has none.
    pub fn block_scales(&self) -> DeviceBytes<'_> {
        self.block_scales.view()
    }

    /// Lets `write` write the buffers in device order; it keeps padding zero. What is derived from the matrix (repeated scales,
    /// values kept dequantized) is then made again in place, in the order of the handle, so that captured products find it too.
    ///
    /// Allocates nothing and waits for nothing of its own: safe inside graph capture, where each launch writes and derives. What
    /// other threads launch meanwhile may find some buffers written and others not.
    ///
    /// # Errors
    /// What `write` returns; [`Error::Unsupported`] for repacked codes; [`Error::Driver`] if a launch fails.
    pub fn write_parts<R>(
        &mut self,
        handle: &Handle,
        write: impl FnOnce(Parts<DeviceBytesMut<'_>>) -> Result<R>,
    ) -> Result<R> {
        self.check_published("writing the buffers of a matrix")?;
        let written = catch_unwind(AssertUnwindSafe(|| write(self.parts())));
        // Also after an error or a panic: it may have written some of them.
        self.derive_again(handle)?;
        written.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// All buffers, for writing by this crate, which then brings what is derived up to date.
    fn parts(&mut self) -> Parts<DeviceBytesMut<'_>> {
        Parts {
            codes: self.codes.view_mut(),
            scales: self.scales.view_mut(),
            block_scales: self.block_scales.view_mut(),
        }
    }

    /// Refuses codes that are not as published.
    pub(crate) fn check_published(&self, what: &str) -> Result<()> {
        match self.code_order {
            CodeOrder::Published => Ok(()),
            CodeOrder::Repacked => Err(Error::unsupported(
                format!("{what}: {} x {} {}, whose codes are repacked", self.rows, self.cols, self.scheme),
                "it takes codes in their published order; products with plain or NVFP4 rows of A, dequantizing and copies to the host know the other",
                "call QuantMatrix::repack with CodeOrder::Published before",
            )),
        }
    }

    /// Whether a captured graph uses the matrix.
    pub(crate) fn used_by_graphs(&self) -> bool {
        [&self.codes, &self.scales, &self.block_scales].into_iter().any(DeviceBuffer::used_by_graphs)
    }

    /// Whether a captured graph writes the matrix: then what it holds may change at any launch.
    pub(crate) fn written_by_graphs(&self) -> bool {
        [&self.codes, &self.scales, &self.block_scales].into_iter().any(DeviceBuffer::written_by_graphs)
    }

    /// Codes, row padding included, and FP32 scales, for a matrix of another kind that takes them over.
    pub(super) fn into_codes_and_scales(self) -> [DeviceBuffer; 2] {
        [self.codes, self.scales]
    }

    /// The addresses of codes, scales and block scales for work that reads them as published; an error for other orders.
    pub(crate) fn read<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<QuantSpans<'s>> {
        self.check_published("this use of a matrix")?;
        self.read_in_order(order)
    }

    /// The same for work that knows the [order](QuantMatrix::code_order) of codes.
    pub(crate) fn read_in_order<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<QuantSpans<'s>> {
        let Self { codes, scales, block_scales, .. } = self;
        Ok(QuantSpans {
            codes: codes.read(order)?,
            scales: scales.read(order)?,
            block_scales: block_scales.read(order)?,
        })
    }

    /// The addresses for work that writes them, as published: an error for a matrix in another order, of which plans and graphs may know.
    pub(crate) fn write<'s, 'q: 's>(&'q mut self, order: &'s Order<'q>) -> Result<QuantSpans<'s>> {
        self.check_published("writing a matrix")?;
        let Self { codes, scales, block_scales, .. } = self;
        Ok(QuantSpans {
            codes: codes.write(order)?,
            scales: scales.write(order)?,
            block_scales: block_scales.write(order)?,
        })
    }

    /// The codes for work that changes their order, which [`QuantMatrix::set_code_order`] then says.
    pub(super) fn write_codes<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<Span<'s>> {
        self.codes.write(order)
    }

    pub(super) fn set_code_order(&mut self, code_order: CodeOrder) {
        self.code_order = code_order;
    }

    /// Some rows of it, in shared memory, to be read; nothing that is derived of the whole comes along. The first is at a multiple of 128. `None`: the scales of
    /// rows do not lie together.
    pub(crate) fn rows_part(&self, rows: Range<usize>) -> Option<Result<Self>> {
        let &Self { scheme, cols, .. } = self;
        if !rows_lie_together(scheme) || !rows.start.is_multiple_of(128) || rows.end > self.rows {
            return None;
        }
        let [codes, scales, block_scales] = places_of_rows(scheme, cols, rows.clone(), self.scales.len());
        let made = || {
            let codes = self.codes.part(codes)?;
            let (scales, block_scales) = (self.scales.part(scales)?, self.block_scales.part(block_scales)?);
            let part = Self::from_parts(scheme, rows.len(), cols, codes, Some(scales), Some(block_scales))?;
            Ok(Self { basis: self.basis, code_order: self.code_order, ..part })
        };
        Some(made())
    }

    /// Refuses a handle on another GPU, as each use does.
    pub(crate) fn check_context(&self, handle: &Handle) -> Result<()> {
        let mut buffers = [&self.codes, &self.scales, &self.block_scales].into_iter();
        buffers.try_for_each(|buffer| buffer.check_context(handle.queue()))
    }

    /// Device bytes of codes and scales, and where they were made, of repeated scales and values kept dequantized.
    pub fn device_bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.block_scales.len() + self.derived.bytes()
    }
}

/// Refuses buffers of another length than the scheme's, and such as begin where kernels cannot load. Address and bytes of each.
fn check_parts(scheme: Scheme, rows: usize, cols: usize, found: [(u64, usize); 3]) -> Result<()> {
    check_size(scheme, rows, cols)?;
    let needed = part_bytes(scheme, rows, cols);
    for ((what, (address, bytes)), needed) in ["codes", "scales", "block scales"].into_iter().zip(found).zip(needed) {
        let operand = || format!("{what} of a {rows} x {cols} {scheme} matrix");
        if bytes != needed {
            return Err(Error::shape(
                operand(),
                format!("{bytes} bytes"),
                format!("must be {needed} (device order, padding included)"),
                "allocate the lengths that Scheme says, or convert through HostQuantMatrix",
            ));
        }
        if bytes > 0 && !address.is_multiple_of(16) {
            return Err(Error::Alignment {
                operand: operand(),
                address,
                required: 16,
                remedy: "begin at an allocation or at a multiple of 16 bytes in it".to_string(),
            });
        }
    }
    Ok(())
}

/// Refuses sizes whose byte counts do not fit in an `isize`, and rows of half-byte codes that are not whole.
pub(crate) fn check_size(scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
    if scheme.spec().format == CodeFormat::E2M1 && !cols.is_multiple_of(16) {
        return Err(Error::shape(
            format!("{scheme} matrix"),
            format!("{rows} x {cols}"),
            "must have a multiple of 16 columns: groups of 16 codes are whole",
            "pad the columns with zeros",
        ));
    }
    let fits = |len: Option<usize>| len.is_some_and(|len| len <= isize::MAX as usize / 8);
    let padded = rows.checked_add(128).and_then(|r| r.checked_mul(cols.checked_add(512)?));
    if fits(padded) {
        return Ok(());
    }
    Err(Error::shape(
        format!("{scheme} matrix"),
        format!("{rows} x {cols}"),
        "is larger than the address space",
        "check the order of rows and columns",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_has_its_length_and_alignment() {
        let scheme = Scheme::ALL[2];
        let check = |codes, scales| check_parts(scheme, 3, 144, [codes, scales, (0, 0)]);
        // 3 rows are stored as 4, and 144 columns have two groups.
        let (codes, scales) = ((4096, 4 * 144), (8192, 4 * 2 * 4));
        check(codes, scales).unwrap();
        let error = check((4096, 3 * 144), scales).unwrap_err().to_string();
        assert!(error.contains("432 bytes") && error.contains("must be 576"), "{error}");
        assert!(check(codes, (8192, 24)).is_err());
        assert!(check_parts(scheme, 3, 144, [codes, scales, (0, 16)]).is_err());
        for (codes, scales, word) in [((4104, 576), scales, "codes"), (codes, (8196, 32), "scales")] {
            let error = check(codes, scales).unwrap_err();
            assert!(matches!(&error, Error::Alignment { operand, .. } if operand.starts_with(word)), "{error}");
        }
        assert!(check_parts(scheme, usize::MAX, 16, [(16, 0); 3]).is_err());
    }

    /// Codes and scales of tiles of 128 rows lie one behind the other, whatever the scheme is, and are those of a matrix of so many rows; one scale is that of all.
    #[test]
    fn parts_of_rows_are_whole_and_leave_nothing_out() {
        let (rows, cols) = (3 * 128 + 40, 288);
        for scheme in Scheme::ALL.into_iter().filter(|scheme| scheme.spec().scale_layout != ScaleLayout::Vec128) {
            let [codes, scales, block_scales] = part_bytes(scheme, rows, cols);
            let span = |address, bytes| Span::unguarded(address, bytes);
            let all = QuantSpans {
                codes: span(1 << 20, codes),
                scales: span(2 << 20, scales),
                block_scales: span(3 << 20, block_scales),
            };
            let mut ends = all.all().map(|part| part.address);
            for at in [0..128, 128..256, 256..384, 384..rows] {
                let part = all.rows_part(scheme, cols, at.clone());
                let own = part.all().map(|span| span.bytes);
                let expected = part_bytes(scheme, at.len(), cols);
                assert_eq!(own, expected, "{scheme}, rows {at:?}");
                for (i, span) in part.all().into_iter().enumerate() {
                    let one = i == 1 && scheme.spec().scale_layout == ScaleLayout::Scalar;
                    assert_eq!(span.address, if one { all.scales.address } else { ends[i] }, "{scheme}, rows {at:?}");
                    ends[i] = span.address + span.bytes as u64;
                }
            }
            assert_eq!(ends, all.all().map(|part| part.range().end), "{scheme}");
        }
    }

    #[test]
    fn matrices_are_shared_among_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<QuantMatrix>();
    }
}
