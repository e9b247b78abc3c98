//! [`GroupedMatmul`]: the library's own product of groups, `D_g = alpha * A_g * B_g`, whose matrices lie where arrays on the device say.

use std::ffi::c_void;

use cublaslt_sys::{
    cublasLtIntegerWidth_t, cublasLtMatmulPreferenceAttributes_t as Pref, cublasLtMatrixLayout_t,
    cublasLtMatrixLayoutAttribute_t as Layout, cudaDataType_t,
};

use super::{
    Algo, Compute, DataType, FastAccumulation, Heuristic, Launch, Library, LtHandle, MatmulDesc, Operand, PointerAttr,
    PointerMode, Preference, ScaleMode, Transpose, attr, check, enqueue, factors_at, library, offers, report,
};
use crate::error::Result;
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// What is multiplied, by the library's words: A transposed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GroupedProblem {
    pub(crate) groups: usize,
    /// Of A, B and D.
    pub(crate) types: [DataType; 3],
    pub(crate) scales: ScaleMode,
    pub(crate) fast: FastAccumulation,
    /// K, rows of D and columns of D of a usual group: by these alone it knows how large groups are.
    pub(crate) usual: [usize; 3],
}

/// The descriptor and the algorithm; layouts are made for each call, as they hold the addresses of its arrays.
pub(crate) struct GroupedMatmul {
    problem: GroupedProblem,
    desc: MatmulDesc,
    algo: Algo,
}

/// Arrays of 64-bit numbers, one for each group, and what else a product reads and writes.
pub(crate) struct GroupedCall<'a> {
    /// Addresses of A, B and D.
    pub(crate) matrices: [&'a Span<'a>; 3],
    /// Rows of A, of B (K both), and of D.
    pub(crate) k: &'a Span<'a>,
    pub(crate) d_rows: &'a Span<'a>,
    pub(crate) d_cols: &'a Span<'a>,
    /// Leading dimensions of D; those of A and B are K.
    pub(crate) d_ld: &'a Span<'a>,
    /// Of A and B: a number that all groups share, or addresses.
    pub(crate) scales: [&'a Span<'a>; 2],
    /// Alpha and beta, on the device.
    pub(crate) factors: &'a Span<'a>,
    pub(crate) workspace: &'a Span<'a>,
    pub(crate) stream: &'a Queue,
}

/// The matrices of one operand: all have one type, and extents of their own.
struct GroupedLayout {
    raw: cublasLtMatrixLayout_t,
    library: &'static Library,
}

impl GroupedLayout {
    fn new(data_type: DataType, groups: usize, [rows, cols, ld]: [u64; 3]) -> Result<Self> {
        let library = library()?;
        let api = &library.api;
        let (mut raw, cuda_type) = (std::ptr::null_mut(), cudaDataType_t(data_type as u32));
        let found = || format!("{groups} groups of {data_type:?}");
        let count = i32::try_from(groups).unwrap_or(i32::MAX);
        let at = |address: u64| address as *const c_void;
        // SAFETY: `raw` outlives the call, which writes one layout to it, and keeps the addresses without reading there.
        let answer =
            unsafe { api.cublasLtGroupedMatrixLayoutCreate(&mut raw, cuda_type, count, at(rows), at(cols), at(ld)) };
        check("cublasLtGroupedMatrixLayoutCreate", answer, found)?;
        let layout = Self { raw, library };
        layout.set(Layout::CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_COLS_ARRAY_INTEGER_WIDTH)?;
        layout.set(Layout::CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY_INTEGER_WIDTH)?;
        Ok(layout)
    }

    /// That the numbers of an array have 64 bits.
    fn set(&self, width: Layout) -> Result<()> {
        let (api, value) = (&self.library.api, cublasLtIntegerWidth_t::CUBLASLT_INTEGER_WIDTH_64.0);
        // SAFETY: the library reads four bytes of `value`, which outlives the call.
        let answer = unsafe {
            api.cublasLtMatrixLayoutSetAttribute(self.raw, width, (&raw const value).cast(), size_of::<u32>())
        };
        check("cublasLtMatrixLayoutSetAttribute", answer, || format!("attribute {}", width.0))
    }
}

impl Drop for GroupedLayout {
    fn drop(&mut self) {
        // SAFETY: `raw` came from cublasLtGroupedMatrixLayoutCreate and is destroyed once; enqueued work has its own copy.
        report("cublasLtMatrixLayoutDestroy", unsafe { self.library.api.cublasLtMatrixLayoutDestroy(self.raw) });
    }
}

impl GroupedProblem {
    /// Layouts of A, B and D, whose arrays lie at these addresses: of K, of rows, columns and leading dimensions of D.
    fn layouts(&self, [k, d_rows, d_cols, d_ld]: [u64; 4]) -> Result<[GroupedLayout; 3]> {
        let [a, b, d] = self.types;
        Ok([
            GroupedLayout::new(a, self.groups, [k, d_rows, k])?,
            GroupedLayout::new(b, self.groups, [k, d_cols, k])?,
            GroupedLayout::new(d, self.groups, [d_rows, d_cols, d_ld])?,
        ])
    }

    fn descriptor(&self, placeholder: u64) -> Result<MatmulDesc> {
        let mut desc = MatmulDesc::new(Compute::F32, DataType::F32)?;
        desc.set(attr::TransA, Transpose::Yes)?;
        desc.set(attr::TransB, Transpose::No)?;
        desc.set(attr::AlphaBetaPlace, PointerMode::Device)?;
        desc.set(attr::FastAccum, self.fast)?;
        desc.set(attr::AScaleMode, self.scales)?;
        desc.set(attr::BScaleMode, self.scales)?;
        desc.expect_pointers(&[PointerAttr::AScale, PointerAttr::BScale], placeholder)?;
        Ok(desc)
    }

    fn preference(&self, workspace_bytes: usize, alignment: u32) -> Result<Preference> {
        let mut preference = Preference::new()?;
        preference.workspace_bytes(workspace_bytes)?;
        for operand in [Operand::A, Operand::B, Operand::C, Operand::D] {
            preference.alignment(operand, alignment)?;
        }
        // As 64 bits: the header says 32, which are refused (observed: 13.10.0).
        for (id, usual) in [
            Pref::CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM,
            Pref::CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS,
            Pref::CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS,
        ]
        .into_iter()
        .zip(self.usual)
        {
            preference.set(id, usual as u64)?;
        }
        Ok(preference)
    }

    fn words(&self, handle: &LtHandle) -> String {
        format!("{self:?}, cuBLASLt {} on {}", handle.version(), handle.device())
    }
}

impl GroupedMatmul {
    /// Asks for an algorithm; gives the words for why there is none. `placeholder`: an address aligned as those of a call are, which nobody reads. Never while a stream is captured.
    pub(crate) fn ask(
        handle: &LtHandle,
        problem: GroupedProblem,
        placeholder: u64,
        workspace_bytes: usize,
        alignment: u32,
    ) -> Result<std::result::Result<Self, String>> {
        let desc = problem.descriptor(placeholder)?;
        let [a, b, d] = problem.layouts([placeholder; 4])?;
        let preference = problem.preference(workspace_bytes, alignment)?;
        handle.bind()?;
        let raw = [a.raw, b.raw, d.raw, d.raw];
        Ok(match offers(handle, &desc, raw, &preference, 1, || problem.words(handle))? {
            Heuristic::Offered(mut algos) => Ok(Self { problem, desc, algo: algos.swap_remove(0) }),
            Heuristic::Refused(status) => {
                Err(format!("cuBLASLt {} has no algorithm for these groups (status {status})", handle.version()))
            }
        })
    }

    /// Bytes of workspace that the algorithm takes.
    pub(crate) fn workspace_bytes(&self) -> usize {
        self.algo.workspace_bytes()
    }

    /// The algorithm, for people.
    pub(crate) fn words(&self) -> String {
        self.algo.config().map_or_else(|error| format!("not readable ({error})"), |config| config.to_string())
    }

    /// Enqueues the product of all groups. Allocates nothing on the device, asks no heuristic, waits for nothing.
    pub(crate) fn enqueue(&mut self, handle: &LtHandle, call: &GroupedCall<'_>) -> Result<()> {
        let &GroupedCall { matrices: [a, b, d], k, d_rows, d_cols, d_ld, scales, factors, workspace, stream, .. } =
            call;
        let each = 8 * self.problem.groups;
        for (name, array) in [
            ("addresses of cuBLASLt's A", a),
            ("addresses of cuBLASLt's B", b),
            ("addresses of cuBLASLt's D", d),
            ("K of groups", k),
            ("rows of D of groups", d_rows),
            ("columns of D of groups", d_cols),
            ("leading dimensions of D of groups", d_ld),
        ] {
            super::require(name, array, each, 16)?;
        }
        for (pointer, span) in [PointerAttr::AScale, PointerAttr::BScale].into_iter().zip(scales) {
            let (bytes, alignment) = match self.problem.scales {
                ScaleMode::Scalar => (4, self.desc.library.scalar_alignment),
                _ => (each, 16),
            };
            super::require(pointer.words(), span, bytes, alignment)?;
            self.desc.set_pointer(pointer, span.address)?;
        }
        super::require("alpha and beta", factors, 8, 16)?;
        super::require("workspace", workspace, self.algo.workspace_bytes(), 256)?;
        let [a_layout, b_layout, d_layout] =
            self.problem.layouts([k.address, d_rows.address, d_cols.address, d_ld.address])?;
        let matrices = [(a, a_layout.raw), (b, b_layout.raw), (d, d_layout.raw), (d, d_layout.raw)];
        let (factors, algo) = (factors_at(factors), &self.algo);
        let launch = Launch { desc: &self.desc, factors, matrices, algo, workspace, stream };
        // SAFETY: the arrays are alive: each Span borrows them, and `require` compared each with the number of groups. What they hold `Kernels::grouped_arrays` has written, earlier on this stream, for the operands
        // of the same call, whose spans its caller (`grouped/library.rs`, the only one) holds in one order until this returns: it compared every length, and cuts counts to the rows that lie there, so
        // that addresses and extents stay within. Memory is freed in stream order, as for `matmul`. Alpha and beta are eight bytes of the same memory, as the descriptor says.
        unsafe { enqueue(handle, &launch, || format!("{}, {}", self.problem.words(handle), self.words())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::lt::quirks::GROUPED;
    use crate::gpu::lt::tests::found;

    /// Of a version that has them, layouts and preferences take what they are told; of one that has not, the refusal names the library.
    #[test]
    fn descriptors_of_groups_need_no_gpu() -> Result<()> {
        let Some(library) = found() else { return Ok(()) };
        let problem = |types, scales| GroupedProblem {
            groups: 7,
            types,
            scales,
            fast: FastAccumulation::Off,
            usual: [7168, 4096, 58],
        };
        let tensor = problem([DataType::E4m3, DataType::E5m2, DataType::Bf16], ScaleMode::EachGroup);
        if library.version() < GROUPED {
            let text = tensor.layouts([4096; 4]).map(drop).unwrap_err().to_string();
            assert!(text.contains("a function is missing"), "{text}");
            assert!(tensor.descriptor(4096).map(drop).unwrap_err().to_string().contains("older than 13.2.0"));
            return Ok(());
        }
        let e2m1 = problem([DataType::E2m1, DataType::E2m1, DataType::F32], ScaleMode::Vector16Ue4m3);
        let e4m3 = problem([DataType::E4m3, DataType::E4m3, DataType::F16], ScaleMode::Vector32Ue8m0);
        let one = problem([DataType::E4m3, DataType::E4m3, DataType::F32], ScaleMode::Scalar);
        for problem in [tensor, e2m1, e4m3, one] {
            let desc = problem.descriptor(4096)?;
            assert_eq!(desc.held(PointerAttr::BScale)?, 4096);
            problem.layouts([4096, 8192, 8192, 4096])?;
            problem.preference(32 << 20, 16)?;
        }
        Ok(())
    }
}
