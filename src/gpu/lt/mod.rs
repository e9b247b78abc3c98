//! The only module that calls cublaslt-sys: library, handle, descriptors with typed attributes, heuristic, matmul.
//!
//! A, B, C, D, rows, columns are the library's, which are column-major; the swap to row-major is `gemm/lt_step.rs`'s.

mod algo;
mod attributes;
mod call;
mod grouped;
mod grouped_matmul;
mod handle;
pub(crate) mod quirks;
mod types;

#[cfg(test)]
pub(crate) mod tests;

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cublaslt_sys::{
    CublasLt, cublasComputeType_t, cublasLtMatmulAlgo_t, cublasLtMatmulAlgoConfigAttributes_t as Config,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as Desc, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t as Pref, cublasLtMatrixLayout_t, cublasStatus_t,
    cudaDataType_t, libloading,
};

pub(crate) use algo::*;
pub(crate) use attributes::*;
pub(crate) use call::*;
pub(crate) use grouped::{NO_GRADIENTS, grouped_refusal, grouped_versions};
pub(crate) use grouped_matmul::{GroupedCall, GroupedMatmul, GroupedProblem};
pub(crate) use handle::LtHandle;
pub(crate) use types::*;

use crate::error::{Error, Result};
use crate::gpu::device::memory::{Span, driver};
use crate::gpu::device::search::{CUBLASLT, Candidate, file_of_address};
use crate::gpu::device::stream::Queue;
use quirks::Version;

/// cuBLASLt as this process has it.
pub(crate) struct Library {
    api: CublasLt,
    version: Version,
    path: Option<PathBuf>,
    found_by: String,
    /// Alignment that one-number scales need on this version.
    scalar_alignment: u64,
}

/// The library, found and loaded by the first call that succeeds; see `device/search.rs` for where it is looked for.
pub(crate) fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = Library::load()?;
    Ok(LIBRARY.get_or_init(|| library))
}

impl Library {
    fn load() -> Result<Self> {
        let (api, found_by) = CUBLASLT.find(|candidate| match candidate {
            // SAFETY: these names and places are NVIDIA's library, or the file that the user named for it.
            Candidate::Resident(name) => unsafe { CublasLt::already_loaded(name) }.ok_or("not loaded".to_string()),
            // SAFETY: as above.
            Candidate::Name(name) => unsafe { CublasLt::open(name) }.map_err(in_full),
            // SAFETY: as above.
            Candidate::File(path) => unsafe { CublasLt::open(path) }.map_err(in_full),
        })?;
        let path = api.cublasLtGetVersion.as_ref().ok().and_then(|f| file_of_address(*f as usize));
        let shown = path.as_ref().map_or_else(|| found_by.clone(), |path| path.display().to_string());
        // SAFETY: takes nothing and returns a number; needs neither a GPU nor a driver.
        let raw = unsafe { api.cublasLtGetVersion() }.map_err(missing)?;
        let version = Version::from_raw(u32::try_from(raw).unwrap_or(u32::MAX));
        quirks::check_minimum(version).map_err(|reason| Error::Library {
            library: format!("cuBLASLt at {shown}"),
            reason,
            remedy: format!("install a newer cuBLAS, or name its file in {}", CUBLASLT.variable),
        })?;
        tracing::debug!(%version, path = shown, found_by, "cuBLASLt loaded");
        let scalar_alignment = quirks::scalar_scale_alignment(version);
        Ok(Self { api, version, path, found_by, scalar_alignment })
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The file, where the system tells it.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// How it was found, in words.
    pub(crate) fn found_by(&self) -> &str {
        &self.found_by
    }
}

/// Loads a library for the whole life of the process, so that a later load by its bare name finds it. Says which of these
/// functions it lacks: the first of them.
pub(super) fn keep_loaded(
    candidate: &Candidate,
    functions: &[&'static str],
) -> std::result::Result<Option<&'static str>, String> {
    let opened = match candidate {
        Candidate::Resident(_) => return Err("not asked for".to_string()),
        // SAFETY: only NVIDIA's driver and NVRTC, under their own names or from a file the user named, come here; their
        // initialisers are made to run in any process.
        Candidate::Name(name) => unsafe { libloading::Library::new(name) },
        // SAFETY: as above.
        Candidate::File(path) => unsafe { libloading::Library::new(path) },
    };
    let library = opened.map_err(in_full)?;
    // SAFETY: only whether there is an address is asked; nothing is read or called there.
    let is_there = |name: &str| unsafe { library.get::<*const ()>(name) }.is_ok();
    let lacking = functions.iter().copied().find(|name| !is_there(name));
    std::mem::forget(library);
    Ok(lacking)
}

/// With the loader's own words, which libloading keeps as the source of its error.
fn in_full(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

fn missing(error: &libloading::Error) -> Error {
    Error::Library {
        library: "cuBLASLt".to_string(),
        reason: format!("a function is missing: {error}"),
        remedy: "install a newer cuBLAS".to_string(),
    }
}

/// What a call gives: a status, or an error where the library lacks the function.
type Answer<'l> = std::result::Result<cublasStatus_t, &'l libloading::Error>;

/// The one place where a status becomes an error; `problem` is only asked for its words then.
fn check(call: &'static str, answer: Answer<'_>, problem: impl FnOnce() -> String) -> Result<()> {
    match status(answer)? {
        Status::SUCCESS => Ok(()),
        failed => Err(Error::Cublas { call, status: failed.0, name: failed.name().to_string(), problem: problem() }),
    }
}

fn status(answer: Answer<'_>) -> Result<Status> {
    answer.map(|status| Status(status.0)).map_err(missing)
}

/// A failure while something is dropped: there is no one to return it to.
fn report(call: &'static str, answer: Answer<'_>) {
    if let Err(error) = check(call, answer, || "a value going out of use".to_string()) {
        tracing::warn!(%error);
    }
}

/// What is computed: transposes, scale modes, epilogue, and the device pointers that belong to them.
pub(crate) struct MatmulDesc {
    raw: cublasLtMatmulDesc_t,
    library: &'static Library,
    facts: Facts,
    /// The address that the library holds for each pointer; `None`: this problem has no such pointer.
    pointers: [Option<u64>; 5],
}

// SAFETY: the library ties a descriptor to no thread; `&mut self` guards every change.
unsafe impl Send for MatmulDesc {}
// SAFETY: through a shared reference nothing is changed, by this module or by the library, whose calls take it as constant.
unsafe impl Sync for MatmulDesc {}

impl MatmulDesc {
    /// Alpha and beta come from the host; everything else is as cuBLASLt has it by default.
    pub(crate) fn new(compute: Compute, scale: DataType) -> Result<Self> {
        let library = library()?;
        let mut raw = std::ptr::null_mut();
        let (compute, scale) = (cublasComputeType_t(compute as u32), cudaDataType_t(scale as u32));
        // SAFETY: `raw` outlives the call, which writes one descriptor to it.
        let answer = unsafe { library.api.cublasLtMatmulDescCreate(&mut raw, compute, scale) };
        check("cublasLtMatmulDescCreate", answer, || "a new descriptor".to_string())?;
        let facts = Facts {
            transposes: [Transpose::No; 2],
            scale_modes: [ScaleMode::Scalar; 2],
            pointer_mode: PointerMode::Host,
            epilogue: EpilogueKind::Default,
            bias: None,
        };
        Ok(Self { raw, library, facts, pointers: [None; 5] })
    }

    pub(crate) fn set<A: Attribute>(&mut self, _: A, value: A::Value) -> Result<()> {
        let version = self.library.version;
        match A::gate(value) {
            Gate::ImpliedBefore(since) if version < since => {}
            Gate::Since(since) if version < since => {
                return Err(Error::unsupported(
                    A::NAME,
                    format!("cuBLASLt {version} is older than {since}"),
                    "install a newer cuBLAS, or scale per tensor",
                ));
            }
            _ => self.set_raw(A::ID, A::NAME, A::raw(value))?,
        }
        A::remember(&mut self.facts, value);
        Ok(())
    }

    fn set_raw<T: Plain>(&mut self, id: Desc, name: &str, value: T) -> Result<()> {
        let api = &self.library.api;
        // SAFETY: the library reads size_of::<T>() bytes of `value`, which outlives the call.
        let answer =
            unsafe { api.cublasLtMatmulDescSetAttribute(self.raw, id, (&raw const value).cast(), size_of::<T>()) };
        check("cublasLtMatmulDescSetAttribute", answer, || {
            format!("attribute {name}, cuBLASLt {}", self.library.version)
        })
    }

    /// Declares the pointers that this problem has. `placeholder` is what the heuristic sees in their place: any device
    /// address that is as aligned as the real ones will be. It is never read: [`matmul`] replaces it at each call.
    pub(crate) fn expect_pointers(&mut self, which: &[PointerAttr], placeholder: u64) -> Result<()> {
        for pointer in PointerAttr::ALL {
            let address = which.contains(&pointer).then_some(placeholder);
            self.set_raw(pointer_id(pointer), pointer.words(), address.unwrap_or(0))?;
            self.pointers[pointer as usize] = address;
        }
        Ok(())
    }

    fn set_pointer(&mut self, pointer: PointerAttr, address: u64) -> Result<()> {
        if self.pointers[pointer as usize] != Some(address) {
            self.set_raw(pointer_id(pointer), pointer.words(), address)?;
            self.pointers[pointer as usize] = Some(address);
        }
        Ok(())
    }
}

impl Drop for MatmulDesc {
    fn drop(&mut self) {
        // SAFETY: `raw` came from cublasLtMatmulDescCreate and is destroyed once; enqueued work has its own copy.
        report("cublasLtMatmulDescDestroy", unsafe { self.library.api.cublasLtMatmulDescDestroy(self.raw) });
    }
}

/// Shape, type and pitch of one column-major matrix.
pub(crate) struct MatrixLayout {
    raw: cublasLtMatrixLayout_t,
    library: &'static Library,
    data_type: DataType,
    rows: usize,
    cols: usize,
    ld: usize,
    /// From the first to the last element: `(cols - 1) * ld + rows` of them.
    bytes: usize,
}

// SAFETY: as for MatmulDesc; a layout is never changed after it is made.
unsafe impl Send for MatrixLayout {}
// SAFETY: as for MatmulDesc.
unsafe impl Sync for MatrixLayout {}

impl MatrixLayout {
    /// `rows` and `cols` are not zero and `ld >= rows`.
    pub(crate) fn new(data_type: DataType, rows: usize, cols: usize, ld: usize) -> Result<Self> {
        let library = library()?;
        let found = || format!("{rows} x {cols}, leading dimension {ld}");
        let refuse = |rule: &str| Error::shape("a cuBLASLt matrix", found(), rule, "check the shape");
        if rows == 0 || cols == 0 || ld < rows {
            return Err(refuse("needs rows, columns > 0 and a leading dimension of at least the rows"));
        }
        let bytes = (cols - 1).checked_mul(ld).and_then(|n| data_type.bytes_of(n.checked_add(rows)?));
        let (Some(bytes), Ok(pitch)) = (bytes.filter(|&n| n <= isize::MAX as usize), i64::try_from(ld)) else {
            return Err(refuse("must have fewer than 2^63 bytes"));
        };
        let (mut raw, cuda_type) = (std::ptr::null_mut(), cudaDataType_t(data_type as u32));
        let api = &library.api;
        // SAFETY: `raw` outlives the call, which writes one layout to it.
        let answer = unsafe { api.cublasLtMatrixLayoutCreate(&mut raw, cuda_type, rows as u64, cols as u64, pitch) };
        check("cublasLtMatrixLayoutCreate", answer, found)?;
        Ok(Self { raw, library, data_type, rows, cols, ld, bytes })
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: `raw` came from cublasLtMatrixLayoutCreate and is destroyed once; enqueued work has its own copy.
        report("cublasLtMatrixLayoutDestroy", unsafe { self.library.api.cublasLtMatrixLayoutDestroy(self.raw) });
    }
}

/// The four matrices of one product.
pub(crate) struct Layouts {
    pub(crate) a: MatrixLayout,
    pub(crate) b: MatrixLayout,
    /// As D, or BF16 or F16 for an FP8 D.
    pub(crate) c: MatrixLayout,
    pub(crate) d: MatrixLayout,
}

/// What the heuristic may assume and use.
pub(crate) struct Preference {
    raw: cublasLtMatmulPreference_t,
    library: &'static Library,
}

impl Preference {
    pub(crate) fn new() -> Result<Self> {
        let library = library()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call, which writes one preference to it.
        let answer = unsafe { library.api.cublasLtMatmulPreferenceCreate(&mut raw) };
        check("cublasLtMatmulPreferenceCreate", answer, || "a new preference".to_string())?;
        Ok(Self { raw, library })
    }

    /// The most workspace that an algorithm may need.
    pub(crate) fn workspace_bytes(&mut self, bytes: usize) -> Result<()> {
        self.set(Pref::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes as u64)
    }

    /// The alignment that an operand's address is sure to have; 256 if not said.
    pub(crate) fn alignment(&mut self, operand: Operand, bytes: u32) -> Result<()> {
        let id = match operand {
            Operand::A => Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Operand::B => Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Operand::C => Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Operand::D => Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        };
        self.set(id, bytes)
    }

    pub(crate) fn reduction(&mut self, reduction: Reduction) -> Result<()> {
        self.set(Pref::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction as u32)
    }

    fn set<T: Plain>(&mut self, id: Pref, value: T) -> Result<()> {
        let api = &self.library.api;
        // SAFETY: the library reads size_of::<T>() bytes of `value`, which outlives the call.
        let answer = unsafe {
            api.cublasLtMatmulPreferenceSetAttribute(self.raw, id, (&raw const value).cast(), size_of::<T>())
        };
        check("cublasLtMatmulPreferenceSetAttribute", answer, || format!("attribute {}", id.0))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: `raw` came from cublasLtMatmulPreferenceCreate and is destroyed once.
        report("cublasLtMatmulPreferenceDestroy", unsafe {
            self.library.api.cublasLtMatmulPreferenceDestroy(self.raw)
        });
    }
}

impl Algo {
    fn config_value<T: Plain>(&self, id: Config) -> Result<T> {
        let (algo, mut value, mut written) = (self.opaque(), T::default(), 0);
        let (api, target, size) = (&library()?.api, (&raw mut value).cast(), size_of::<T>());
        // SAFETY: `algo` is 64 bytes that the call only reads; it writes at most `size` bytes to `value`.
        let answer = unsafe { api.cublasLtMatmulAlgoConfigGetAttribute(&algo, id, target, size, &mut written) };
        check("cublasLtMatmulAlgoConfigGetAttribute", answer, || format!("attribute {} of {size} bytes", id.0))?;
        Ok(value)
    }
}

const EMPTY: cublasLtMatmulHeuristicResult_t = cublasLtMatmulHeuristicResult_t {
    algo: cublasLtMatmulAlgo_t { data: [0; 8] },
    workspaceSize: 0,
    state: cublasStatus_t(Status::NOT_SUPPORTED.0),
    wavesCount: 0.0,
    reserved: [0; 4],
};

/// The problem in words, for an error.
fn describe(handle: &LtHandle, desc: &MatmulDesc, layouts: &Layouts) -> String {
    let Facts { transposes, scale_modes, epilogue, .. } = desc.facts;
    format!(
        "{layouts}, transposes {transposes:?}, scales {scale_modes:?}, epilogue {epilogue:?}, cuBLASLt {} on {}",
        handle.version(),
        handle.device()
    )
}

/// Up to `max` algorithms (at most 256) for a problem. Takes tens of microseconds; never while a stream is captured.
pub(crate) fn heuristic(
    handle: &LtHandle,
    desc: &MatmulDesc,
    layouts: &Layouts,
    preference: &Preference,
    max: usize,
) -> Result<Heuristic> {
    layouts.extents(&desc.facts)?;
    handle.bind()?;
    let Layouts { a, b, c, d } = layouts;
    offers(handle, desc, [a.raw, b.raw, c.raw, d.raw], preference, max, || describe(handle, desc, layouts))
}

/// The same of layouts that fit together, with the context bound. `problem` is only asked for its words where something is broken.
fn offers(
    handle: &LtHandle,
    desc: &MatmulDesc,
    [a, b, c, d]: [cublasLtMatrixLayout_t; 4],
    preference: &Preference,
    max: usize,
    problem: impl FnOnce() -> String,
) -> Result<Heuristic> {
    let mut results = vec![EMPTY; max.clamp(1, 256)];
    let (room, mut count) = (results.len() as i32, 0);
    let (lt, target) = (&handle.handle, results.as_mut_ptr());
    // SAFETY: handle, descriptor and preference are alive behind the borrows, and the layouts with whoever asks; `results` has `room` elements.
    let answer = unsafe {
        let api = &lt.library.api;
        let preference = preference.raw;
        api.cublasLtMatmulAlgoGetHeuristic(lt.raw, desc.raw, a, b, c, d, preference, room, target, &mut count)
    };
    let refusal = match status(answer)? {
        Status::SUCCESS => Status::NOT_SUPPORTED,
        refused if refused.is_refusal() => return Ok(Heuristic::Refused(refused)),
        _ => {
            check("cublasLtMatmulAlgoGetHeuristic", answer, problem)?;
            Status::NOT_SUPPORTED
        }
    };
    results.truncate(usize::try_from(count).unwrap_or(0));
    let offered: Vec<_> = results.iter().filter(|r| r.state.0 == Status::SUCCESS.0).map(Algo::offered).collect();
    Ok(if offered.is_empty() { Heuristic::Refused(refusal) } else { Heuristic::Offered(offered) })
}

/// Enqueues `D = epilogue(alpha * A * B + beta * C)`. Allocates nothing, asks no heuristic, waits for nothing.
pub(crate) fn matmul(mut call: MatmulCall<'_>) -> Result<()> {
    call.prepare()?;
    let MatmulCall { handle, desc, layouts, algo, factors, a, b, c, d, workspace, stream, .. } = call;
    let host = match factors {
        Factors::Host { alpha, beta } => [alpha, beta],
        Factors::Device(_) => [0.0; 2],
    };
    let factors = match factors {
        Factors::Host { .. } => [(&raw const host[0]).cast(), (&raw const host[1]).cast()],
        Factors::Device(span) => factors_at(span),
    };
    let Layouts { a: a_layout, b: b_layout, c: c_layout, d: d_layout } = layouts;
    let matrices = [(a, a_layout.raw), (b, b_layout.raw), (c.unwrap_or(d), c_layout.raw), (d, d_layout.raw)];
    let launch = Launch { desc, factors, matrices, algo, workspace, stream };
    // SAFETY: the memory is alive: each Span borrows it, and cudarc frees a slice only in stream order, after this work;
    // raw addresses are vouched for by whoever made them (DeviceBytes::from_raw). Lengths: `prepare` compared each span
    // with what layout, scale mode and epilogue read or write. Order: this stream was made to
    // wait for earlier writers, and the guards that the spans' order holds record this work when they drop, after this call.
    // alpha and beta are host values read before it returns, or eight bytes of such memory, as `prepare` found the descriptor to say.
    unsafe { enqueue(handle, &launch, || format!("{}, {:?}", describe(handle, desc, layouts), algo)) }
}

/// Alpha, and beta behind it, on the device.
fn factors_at(span: &Span<'_>) -> [*const c_void; 2] {
    let alpha = span.address as *const c_void;
    [alpha, alpha.wrapping_byte_add(4)]
}

/// One call of the library's product.
struct Launch<'a> {
    desc: &'a MatmulDesc,
    /// Alpha and beta, where the descriptor says.
    factors: [*const c_void; 2],
    /// A, B, C and D: matrices, or of groups the arrays of their addresses.
    matrices: [(&'a Span<'a>, cublasLtMatrixLayout_t); 4],
    algo: &'a Algo,
    workspace: &'a Span<'a>,
    stream: &'a Queue,
}

/// Enqueues it. `problem` is only asked for its words where it fails.
///
/// # Safety
/// The layouts are alive, and all memory that descriptor, layouts and algorithm say is read or written, in the order of the stream.
unsafe fn enqueue(handle: &LtHandle, launch: &Launch<'_>, problem: impl FnOnce() -> String) -> Result<()> {
    let &Launch { desc, factors: [alpha, beta], matrices: [a, b, c, d], algo, workspace, stream } = launch;
    // Not all its kernels wait for what they read.
    stream.settle()?;
    stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
    let address = |span: &Span<'_>| span.address as *mut c_void;
    let (lt, opaque, cu_stream) = (&handle.handle, algo.opaque(), stream.stream.cu_stream().cast());
    // SAFETY: the caller vouches for memory and layouts; handle and descriptor are alive behind the borrows.
    let answer = unsafe {
        lt.library.api.cublasLtMatmul(
            lt.raw,
            desc.raw,
            alpha,
            address(a.0),
            a.1,
            address(b.0),
            b.1,
            beta,
            address(c.0),
            c.1,
            address(d.0),
            d.1,
            &opaque,
            address(workspace),
            workspace.bytes,
            cu_stream,
        )
    };
    check("cublasLtMatmul", answer, problem)
}
