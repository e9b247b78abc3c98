//! Quantizing and dequantizing on a GPU, matrices in host memory: a stream and memory of its own for each thread that does so.

use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::{
    CastMatrix, CastRecipe, DType, DeviceBuffer, GivenScale, Handle, HostCastMatrix, HostParts, HostQuantMatrix,
    MatMut, MatRef, QuantMatrix, QuantizeTo, Recipe, Result, Scheme,
};

use super::Caster;

/// Reading, both copies and what is asked of the values are the host's work, and take longer than the GPU's.
const SIDE_BY_SIDE: usize = 6;

/// Holds what it used last: neither the driver nor the system is asked for memory for each part.
pub struct CudaCaster {
    ordinal: usize,
    /// Made at first use, on the thread that uses it.
    open: Option<Open>,
}

struct Open {
    handle: Handle,
    plain: DeviceBuffer,
    /// A number that kernels read.
    number: DeviceBuffer,
    quantized: Option<QuantMatrix>,
    cast: Option<CastMatrix>,
}

impl CudaCaster {
    /// Bytes of a part: enough to fill the GPU, and few enough for all that are on their way.
    pub const PART: usize = 16 << 20;

    pub fn new(ordinal: usize) -> Self {
        Self { ordinal, open: None }
    }

    /// How many are worth having on this machine.
    pub fn side_by_side() -> usize {
        std::thread::available_parallelism().map_or(1, |n| n.get()).min(SIDE_BY_SIDE)
    }

    /// With room for so many bytes of plain values.
    fn open(&mut self, bytes: usize) -> Result<&mut Open> {
        let open = match self.open.take() {
            Some(open) if open.plain.len() >= bytes => open,
            Some(open) => Open { plain: open.handle.alloc(bytes)?, ..open },
            None => {
                let handle = Handle::new(self.ordinal)?;
                let (plain, number) = (handle.alloc(bytes.max(Self::PART))?, handle.alloc(size_of::<f32>())?);
                Open { handle, plain, number, quantized: None, cast: None }
            }
        };
        Ok(self.open.insert(open))
    }
}

impl Open {
    /// A matrix to write: that of the last part, where it is alike.
    fn take(&mut self, scheme: Scheme, rows: usize, cols: usize) -> Result<QuantMatrix> {
        match self.quantized.take() {
            Some(q) if (q.scheme(), q.rows(), q.cols()) == (scheme, rows, cols) => Ok(q),
            _ => QuantMatrix::zeros(&self.handle, scheme, rows, cols),
        }
    }

    fn set_number(&mut self, number: f32) -> Result<()> {
        self.handle.write(&mut self.number.view_mut(), &[number])
    }
}

impl Caster for CudaCaster {
    fn quantize_part(
        &mut self,
        x: &PlainRows,
        recipe: Recipe,
        whole: Option<(GivenScale, usize)>,
        buffer: Vec<u8>,
    ) -> Result<HostQuantMatrix> {
        let (source, rows, cols, scheme) = (x.dtype(), x.rows(), x.cols(), recipe.scheme());
        // Where it matters which is the first row there is one part.
        let whole = whole.map(|(whole, _)| whole);
        let open = self.open(x.bytes().len())?;
        let mut q = open.take(scheme, rows, cols)?;
        open.handle.write(&mut open.plain.view_mut(), x.bytes())?;
        // The rule's scale, which need not be the reciprocal of what the data are multiplied by.
        let mut scale = None;
        match (recipe, whole) {
            (Recipe::Fp8(fp8), Some(whole)) if matches!(scheme, Scheme::Fp8Tensor(_)) => {
                let factors = match whole {
                    GivenScale::Amax(amax) => fp8.group_scale(amax, source),
                    given => given.factors()?,
                };
                scale = Some(factors.scale);
                open.set_number(factors.encode)?;
                let (x, given) =
                    (MatRef::new(&open.plain, source, rows, cols)?, GivenScale::Encode((&open.number).into()));
                open.handle.quantize_tensor_into(&x, fp8.format, &given, &mut q, None)?;
            }
            (Recipe::Nvfp4(nv), Some(whole)) if scheme == Scheme::Nvfp4 => {
                open.set_number(*whole.number())?;
                let (x, given) =
                    (MatRef::new(&open.plain, source, rows, cols)?, whole.with_number((&open.number).into()));
                open.handle.quantize_nvfp4_into(&x, nv, &given, QuantizeTo::Plain(&mut q))?;
            }
            _ => {
                let x = MatRef::new(&open.plain, source, rows, cols)?;
                open.handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut q))?;
            }
        }
        let host = q.to_host_in(&open.handle, HostParts { codes: buffer, ..HostParts::default() })?;
        open.quantized = Some(q);
        let Some(scale) = scale else { return Ok(host) };
        let parts = HostParts { scales: vec![scale], ..host.into_parts() };
        HostQuantMatrix::from_parts(scheme, rows, cols, parts)
    }

    fn dequantize(&mut self, q: &HostQuantMatrix, out: DType, mut buffer: Vec<u8>) -> Result<PlainRows> {
        let (rows, cols) = (q.rows(), q.cols());
        let bytes = rows * cols * out.bytes();
        let open = self.open(bytes)?;
        let mut quantized = open.take(q.scheme(), rows, cols)?.assume_basis(q.basis());
        let Open { handle, plain, .. } = open;
        quantized.write_parts(handle, |mut to| {
            handle.write(&mut to.codes, q.codes())?;
            handle.write(&mut to.scales, q.scales())?;
            handle.write(&mut to.block_scales, q.block_scales())
        })?;
        handle.dequantize_into(&quantized, &mut MatMut::new(&mut *plain, out, rows, cols)?)?;
        buffer.resize(bytes, 0);
        handle.read_into(&plain.view(), &mut buffer)?;
        open.quantized = Some(quantized);
        PlainRows::new(out, rows, cols, buffer)
    }

    fn cast(&mut self, x: &PlainRows, recipe: CastRecipe) -> Result<HostCastMatrix> {
        let (rows, cols, scheme) = (x.rows(), x.cols(), recipe.scheme());
        let open = self.open(x.bytes().len())?;
        // That of the last part, where it is alike.
        let mut q = match open.cast.take() {
            Some(q) if (q.scheme(), q.rows(), q.cols()) == (scheme, rows, cols) => q,
            _ => CastMatrix::zeros(&open.handle, scheme, rows, cols)?,
        };
        open.handle.write(&mut open.plain.view_mut(), x.bytes())?;
        let x = MatRef::new(&open.plain, x.dtype(), rows, cols)?;
        open.handle.cast_into(&x, recipe, &mut q)?;
        let host = q.to_host(&open.handle)?;
        open.cast = Some(q);
        Ok(host)
    }

    fn cast_back(&mut self, q: &HostCastMatrix, out: DType, mut buffer: Vec<u8>) -> Result<PlainRows> {
        let (rows, cols) = (q.rows(), q.cols());
        let Open { handle, plain, .. } = self.open(rows * cols * out.bytes())?;
        let q = CastMatrix::from_host(handle, q)?;
        handle.cast_back_into(&q, &mut MatMut::new(&mut *plain, out, rows, cols)?)?;
        buffer.resize(rows * cols * out.bytes(), 0);
        handle.read_into(&plain.view(), &mut buffer)?;
        PlainRows::new(out, rows, cols, buffer)
    }
}
