//! [`CastMatrix`]: the result of a cast on the device.

use crate::error::{Error, Result};
use crate::format::{
    Basis, CastGroup, CastScales, CastScheme, CodeFormat, Fp8Format, HostCastMatrix, Scheme, check_given_scales,
    check_scales, logical_scales,
};
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytes, DeviceBytesMut, Span};
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::KernelFamily;
use crate::gpu::matrix::QuantMatrix;

/// A `rows x cols` matrix of codes with scales of groups, on the device: `value[i, j] = code[i, j] * scale[group of (i, j)]`.
///
/// Codes, scales, grouping and order of scales travel as this one value; lengths were checked when it was built. No product reads
/// it: what products read is a [`QuantMatrix`](crate::QuantMatrix). Codes are packed, without padding; padding among the scales
/// is zero.
///
/// `Send` and `Sync`, ordered by events of its own like a `QuantMatrix`.
pub struct CastMatrix {
    scheme: CastScheme,
    rows: usize,
    cols: usize,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
}

impl CastMatrix {
    /// A matrix of zero codes and scales of zero bytes, which are 0 or, in UE8M0, 2^-127: [`CastMatrix::check_given_scales`] cannot tell those from scales that somebody wrote. Allocates on the handle's stream, and loads the kernels of the casts.
    ///
    /// # Errors
    /// [`Error::Shape`] for a shape that the scheme refuses; [`Error::Driver`] if there is not enough memory; [`Error::Unsupported`]
    /// inside graph capture; [`Error::Kernel`].
    pub fn zeros(handle: &Handle, scheme: CastScheme, rows: usize, cols: usize) -> Result<Self> {
        handle.refuse_capture("allocating a CastMatrix")?;
        scheme.check_shape(rows, cols)?;
        handle.kernels().load(handle.queue(), KernelFamily::Cast)?;
        let lengths = [scheme.code_bytes(rows, cols), scheme.scale_bytes(rows, cols)];
        let [codes, scales] = DeviceBuffer::zeros_together(handle.queue(), lengths)?;
        Ok(Self { scheme, rows, cols, codes, scales })
    }

    /// A matrix from its buffers. Nothing is copied or read; padding among the scales must be zero, as casts leave it and files have it; the contents are not checked. Kernels are not loaded: before a capture, [`Handle::load_kernels`].
    ///
    /// # Errors
    /// [`Error::Shape`] if a buffer is not exactly as long as the scheme says, or for a shape that it refuses; [`Error::Alignment`]
    /// unless each begins at a multiple of 16 bytes.
    pub fn from_parts(
        scheme: CastScheme,
        rows: usize,
        cols: usize,
        codes: DeviceBuffer,
        scales: DeviceBuffer,
    ) -> Result<Self> {
        scheme.check_shape(rows, cols)?;
        let wanted = [scheme.code_bytes(rows, cols), scheme.scale_bytes(rows, cols)];
        for ((what, buffer), wanted) in [("codes", &codes), ("scales", &scales)].into_iter().zip(wanted) {
            let operand = format!("{what} of a {rows} x {cols} matrix cast to {scheme}");
            if buffer.len() != wanted {
                let found = format!("{} bytes", buffer.len());
                return Err(Error::shape(operand, found, format!("must be {wanted}"), "pass the whole buffer"));
            }
            if wanted > 0 && !buffer.address().is_multiple_of(16) {
                let remedy = "start the buffer at the allocation, or at a multiple of 16 bytes".into();
                return Err(Error::Alignment { operand, address: buffer.address(), required: 16, remedy });
            }
        }
        Ok(Self { scheme, rows, cols, codes, scales })
    }

    /// Copies a host matrix to the device. Allocates.
    ///
    /// # Errors
    /// As [`CastMatrix::zeros`].
    pub fn from_host(handle: &Handle, host: &HostCastMatrix) -> Result<Self> {
        let mut matrix = Self::zeros(handle, host.scheme(), host.rows(), host.cols())?;
        handle.write(&mut matrix.codes.view_mut(), host.codes())?;
        handle.write(&mut matrix.scales.view_mut(), &host.device_scales())?;
        Ok(matrix)
    }

    /// Copies the matrix to the host. Waits for the handle's stream.
    ///
    /// # Errors
    /// [`Error::Driver`] if the copy fails; [`Error::Unsupported`] inside graph capture.
    pub fn to_host(&self, handle: &Handle) -> Result<HostCastMatrix> {
        let (codes, scales) = (handle.read_bytes(&self.codes())?, handle.read_bytes(&self.scales())?);
        HostCastMatrix::from_parts(self.scheme, self.rows, self.cols, codes, &scales)
    }

    /// That no scale is NaN or negative, as [`HostCastMatrix::check_scales`]. Kernels do not look at scales: ask this once of codes that come from
    /// elsewhere, before they are a source. Copies the scales to the host, allocates there, and waits for the handle's stream.
    ///
    /// # Errors
    /// [`Error::Unsupported`], which names the first such scale, or inside graph capture; [`Error::Driver`] if the copy fails.
    pub fn check_scales(&self, handle: &Handle) -> Result<()> {
        check_scales(self.scheme, self.rows, self.cols, &self.read_scales(handle)?)
    }

    /// That every scale is one that codes can be cast by, as [`reference::cast_with_scales`](crate::reference::cast_with_scales) asks: finite and above 0. Ask this of scales
    /// that are given, before [`Handle::cast_with_scales_into`], whose kernels do not look at them. Otherwise as [`CastMatrix::check_scales`].
    ///
    /// # Errors
    /// As [`CastMatrix::check_scales`].
    pub fn check_given_scales(&self, handle: &Handle) -> Result<()> {
        check_given_scales(self.scheme, self.rows, self.cols, &self.read_scales(handle)?)
    }

    /// The scales in logical order.
    fn read_scales(&self, handle: &Handle) -> Result<Vec<f32>> {
        let bytes = handle.read_bytes(&self.scales())?;
        Ok(logical_scales(self.scheme, self.rows, self.cols, &bytes))
    }

    /// How it is read.
    pub fn scheme(&self) -> CastScheme {
        self.scheme
    }

    /// Logical rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Logical columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes.
    pub fn codes(&self) -> DeviceBytes<'_> {
        self.codes.view()
    }

    /// The scales, in the scheme's order.
    pub fn scales(&self) -> DeviceBytes<'_> {
        self.scales.view()
    }

    /// The codes, to be written.
    pub fn codes_mut(&mut self) -> DeviceBytesMut<'_> {
        self.codes.view_mut()
    }

    /// The scales, to be written: those that [`Handle::cast_with_scales_into`] takes. Padding stays zero.
    pub fn scales_mut(&mut self) -> DeviceBytesMut<'_> {
        self.scales.view_mut()
    }

    /// The addresses of codes and scales for work that reads them.
    pub(crate) fn read<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<[Span<'s>; 2]> {
        Ok([self.codes.read(order)?, self.scales.read(order)?])
    }

    /// The same for work that writes them.
    pub(crate) fn write<'s, 'q: 's>(&'q mut self, order: &'s Order<'q>) -> Result<[Span<'s>; 2]> {
        Ok([self.codes.write(order)?, self.scales.write(order)?])
    }
}

/// The cast whose codes and scales lie as those of a scheme.
fn cast_scheme(scheme: Scheme) -> Result<CastScheme> {
    match scheme {
        Scheme::Fp8Row(Fp8Format::E4M3) => CastScheme::new(CodeFormat::E4M3, CastGroup::Row),
        Scheme::Fp8Group1x128(Fp8Format::E4M3) => {
            Ok(CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128)?.with_scales(CastScales::ColumnMajor))
        }
        other => Err(Error::unsupported(
            format!("a QuantMatrix of {other} as a CastMatrix"),
            "only fp8-row and fp8-1x128 in e4m3 have codes and scales that lie as those of a cast",
            "dequantize it (Handle::dequantize_into), and cast the result",
        )),
    }
}

impl TryFrom<QuantMatrix> for CastMatrix {
    type Error = Error;

    /// What products read, as a source of casts: `fp8-row` in groups of a `row`, `fp8-1x128` in those of `1x128` with scales in column-major order, both in
    /// E4M3. The buffers are taken over, whose bytes lie alike: nothing is copied or launched. The kernels of the casts are not loaded: before a capture,
    /// [`Handle::load_kernels`].
    ///
    /// # Errors
    /// The matrix is dropped with them: ask [`QuantMatrix::scheme`] and [`QuantMatrix::basis`] before, where it is the only copy. [`Error::Unsupported`] for other schemes, and for values in another basis, of which a `CastMatrix` says nothing; [`Error::Shape`] unless columns are a multiple of 16.
    fn try_from(q: QuantMatrix) -> Result<Self> {
        let (scheme, rows, cols) = (cast_scheme(q.scheme())?, q.rows(), q.cols());
        if q.basis() != Basis::Plain {
            return Err(Error::unsupported(
                format!("a QuantMatrix in the basis {} as a CastMatrix", q.basis()),
                "a CastMatrix has the values themselves",
                "call QuantMatrix::assume_basis with Basis::Plain before, if they are to be taken as they are",
            ));
        }
        scheme.check_shape(rows, cols)?;
        let [codes, scales] = q.into_codes_and_scales();
        // Without the padding of rows, which is behind all of them.
        let codes = codes.part(0..scheme.code_bytes(rows, cols))?;
        Self::from_parts(scheme, rows, cols, codes, scales)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every scale has the same place in both, and as many bytes are asked of the buffer; of no other scheme that is said.
    #[test]
    fn scales_of_what_products_read_lie_as_those_of_the_cast() {
        let mut taken = 0;
        for scheme in Scheme::ALL {
            let Ok(cast) = cast_scheme(scheme) else { continue };
            taken += 1;
            let layout = scheme.spec().scale_layout;
            for (rows, cols) in [(0, 128), (1, 16), (3, 272), (4, 128), (130, 1040)] {
                let [r, c] = cast.group().grid(rows, cols);
                assert_eq!(scheme.scale_grid(rows, cols), [r, c], "{scheme} {rows} x {cols}");
                assert_eq!(scheme.scale_len(rows, cols) * 4, cast.scale_bytes(rows, cols), "{scheme} {rows} x {cols}");
                assert!(scheme.code_bytes(rows, cols) >= cast.code_bytes(rows, cols), "{scheme} {rows} x {cols}");
                for (i, j) in (0..r).flat_map(|i| (0..c).map(move |j| (i, j))) {
                    assert_eq!(layout.index(r, c, i, j), cast.scales().index(r, c, i, j), "{scheme} ({i}, {j})");
                }
            }
        }
        assert_eq!(taken, 2);
    }
}
