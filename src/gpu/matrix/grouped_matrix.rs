//! [`GroupedMatrix`]: a grouped tensor as an operand of a product of groups, in the memory that it has.

use std::sync::Arc;

use super::grouped::Known;
use super::{GroupedTensor, QuantMatrix};
use crate::error::{Error, Result};
use crate::format::pair::check_quantize_cols;
use crate::format::{GroupedLayout, GroupedMember, GroupedScales, Scheme};
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytes};

/// Rows at whose multiples groups begin, and of whose multiples matrices are.
const STEP: usize = 128;
const ROWS: &str = "a grouped tensor as A of a product of groups";
const MATRICES: &str = "a grouped tensor as B of a product of groups";

/// The members of a [`GroupedTensor`] as one `fp8-tensor` operand of a product of groups, `value = code * scale[t]` in the rows of member t. It borrows the tensor, whose codes and scales are
/// read where they lie: what they hold when a product runs is what counts. Made by [`GroupedTensor::padded_rows`] and [`GroupedTensor::stacked`], passed to
/// [`GroupedGemmArgs::new`](crate::GroupedGemmArgs::new), which takes the scale of each member for that of its group.
pub struct GroupedMatrix<'a> {
    matrix: QuantMatrix,
    /// One for each member; `None` where all share that of the matrix.
    scales: Option<&'a DeviceBuffer>,
    members: usize,
    /// Where members begin; `None` where the device alone knows.
    begins: Option<Arc<GroupedLayout>>,
    stacked: bool,
}

impl GroupedTensor {
    /// `A = [A_0; A_1; ...]`: member t is the rows of group t, in a matrix of all rows of the buffer, those between groups too. Rows: the buffer's elements by the columns of a member. Its groups lie
    /// as [`GroupedRows`](crate::GroupedRows) tells the product, one for each member, at the rows where members begin; their counts may be the layout's own numbers
    /// ([`GroupedDeviceLayout::rows`](crate::GroupedDeviceLayout::rows)), which the device may write.
    ///
    /// Members have as many columns, a multiple of 16, and begin at multiples of 128 rows, at one of which the buffer ends: [`GroupedLayout::aligned`] to `128 * columns` elements. The host must know the columns, which
    /// nobody reads back: those that [`GroupedDeviceLayout::write`](crate::GroupedDeviceLayout::write) wrote last (or `from_host`), while `cols_mut` was never called; else [`GroupedTensor::padded_rows_of`] takes them. Offsets the device may choose
    /// (`offsets_mut`), and then nobody compares them with what the product is told: whoever writes them writes the starts of [`GroupedRows::Contiguous`](crate::GroupedRows), too, `offset / columns`, in order. Where they differ, or columns do, rows are multiplied by
    /// another member's codes or scale; none outside of the buffer is read.
    ///
    /// Members that are stored transposed are refused, and serve no other product of groups either: the gradients of the matrices read transposes of X and dY of another form, as
    /// [`GroupedWeightGradient`](crate::GroupedWeightGradient) says. ([`GroupedTensor::stacked`] takes matrices that are stored transposed.)
    ///
    /// Copies nothing, allocates nothing on the device, waits for nothing: safe inside graph capture. A captured product goes on with this matrix, whatever layout is written later.
    ///
    /// ```no_run
    /// # use scaled_gemm::{
    /// #     DType, DeviceBuffer, GroupedGemmArgs, GroupedRecipe, GroupedRows, GroupedSource, GroupedTensor, Handle, MatMut, Result,
    /// # };
    /// # fn experts(handle: &Handle, x: &DeviceBuffer, a: &mut GroupedTensor, b: &GroupedTensor, d: MatMut<'_>) -> Result<()> {
    /// // Two experts in slots of 256 tokens, whose counts the device has; b: their matrices, quantized before.
    /// handle.quantize_grouped_into(&GroupedSource::new(x, DType::Bf16)?, GroupedRecipe::new(a.scheme()), &mut *a, None)?;
    /// let (tokens, matrices) = (a.padded_rows()?, b.stacked()?);
    /// let rows = GroupedRows::Masked { slot_rows: 256, counts: a.layout().rows() };
    /// handle.grouped_gemm(GroupedGemmArgs::new(&tokens, &matrices, 2, rows, d))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for members that lie otherwise, or none; [`Error::Unsupported`] for members that are stored transposed, and for columns that the host does not know.
    pub fn padded_rows(&self) -> Result<GroupedMatrix<'_>> {
        self.check_by_rows()?;
        let known = self.layout.known();
        let layout = written(ROWS, &known, ["", "columns", ""])?;
        let [_, cols] = check_some(ROWS, &layout)?;
        self.rows_of(cols, known)
    }

    /// [`GroupedTensor::padded_rows`] of members whose columns the caller says and the host need not know, nor anything else of the layout: of numbers that came from the device
    /// ([`GroupedDeviceLayout::from_parts`](crate::GroupedDeviceLayout::from_parts)), or that it writes. Columns: a multiple of 16, of which the buffer holds a multiple of 128 rows. Members of other columns, or that begin
    /// elsewhere than where the product is told, multiply other codes and scales of the buffer than their own, and none outside of it.
    ///
    /// Copies nothing, allocates nothing on the device, waits for nothing: safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Shape`] for such columns, or no members, or where the host knows that members lie otherwise; [`Error::Unsupported`] for members that are stored transposed.
    pub fn padded_rows_of(&self, cols: usize) -> Result<GroupedMatrix<'_>> {
        self.check_by_rows()?;
        self.rows_of(cols, self.layout.known())
    }

    fn rows_of(&self, cols: usize, known: Known) -> Result<GroupedMatrix<'_>> {
        let shape = padded(ROWS, cols, &known, self.layout.buffer_len())?;
        let [.., offsets_lent] = known.lent;
        self.matrix(known.written.filter(|_| !offsets_lent), shape, false)
    }

    fn check_by_rows(&self) -> Result<()> {
        if self.scheme.is_transposed() {
            return Err(Error::unsupported(
                format!("{ROWS}, {}", self.scheme),
                "the rows of a member do not lie together",
                "quantize by rows (GroupedScheme::by_rows)",
            ));
        }
        Ok(())
    }

    /// `B = [B_0; B_1; ...]`: member t is the matrix of group t, its n rows from row `t * n` on. Of members that are stored transposed the matrices are the transposes, as the gradient of the input reads them.
    ///
    /// Members have one shape, n (as they are stored) a multiple of 128 and the columns one of 16, and lie one behind the other without gaps, from the beginning of the buffer on
    /// ([`GroupedLayout::packed`]). The host must know all of that, as of [`GroupedTensor::padded_rows`], rows too: also `rows_mut` was never called. A layout of which the device alone knows is refused.
    ///
    /// Copies nothing, allocates nothing on the device, waits for nothing: safe inside graph capture. A captured product goes on with these matrices, whatever layout is written later.
    ///
    /// # Errors
    /// [`Error::Shape`] for members that lie otherwise, or none; [`Error::Unsupported`] for a layout that the host does not know.
    pub fn stacked(&self) -> Result<GroupedMatrix<'_>> {
        let layout = written(MATRICES, &self.layout.known(), ["rows", "columns", "offsets"])?;
        let shape = stacked(MATRICES, &layout, self.scheme.is_transposed())?;
        self.matrix(Some(layout), shape, true)
    }

    /// The rows from the beginning of the buffer on, a multiple of [`STEP`] of them.
    fn matrix(
        &self,
        begins: Option<Arc<GroupedLayout>>,
        [rows, cols]: [usize; 2],
        stacked: bool,
    ) -> Result<GroupedMatrix<'_>> {
        let members = self.layout.members();
        if members == 0 {
            return Err(no_members(if stacked { MATRICES } else { ROWS }));
        }
        let scheme = Scheme::Fp8Tensor(self.scheme.format());
        let codes = self.codes.part(0..scheme.code_bytes(rows, cols))?;
        // With scales of members the product reads none of the matrix.
        let scale = self.scales.part(0..4)?;
        let matrix = QuantMatrix::from_parts(scheme, rows, cols, codes, Some(scale), None)?;
        let scales = (self.scheme.scales() == GroupedScales::PerMember).then_some(&self.scales);
        Ok(GroupedMatrix { matrix, scales, members, begins, stacked })
    }
}

/// The layout that the host knows; an error if one of these numbers may be another. Names of rows, columns and offsets, empty for what need not be known.
fn written(operand: &str, known: &Known, needed: [&str; 3]) -> Result<Arc<GroupedLayout>> {
    let lent = needed.into_iter().zip(known.lent).find_map(|(name, lent)| (lent && !name.is_empty()).then_some(name));
    let reason = match (&known.written, lent) {
        (Some(layout), None) => return Ok(layout.clone()),
        (_, Some(name)) => format!(
            "{name} of its layout were handed out to be written, or a captured graph writes them: the device alone knows them, and nobody reads them back"
        ),
        (None, None) => "where its members lie the device alone knows, and nobody reads it back".to_string(),
    };
    // Where offsets need not be known, columns are all that is.
    let told = if needed.contains(&"offsets") { "" } else { ", say the columns (GroupedTensor::padded_rows_of)" };
    let remedy = format!(
        "write the layout from the host alone (GroupedDeviceLayout::from_host, write){told}, or multiply members one by one (GroupedTensor::to_host, HostGroupedTensor::matrix)"
    );
    Err(Error::unsupported(operand, reason, remedy))
}

fn no_members(operand: &str) -> Error {
    Error::shape(operand, "no members", "must have one for each group", "multiply nothing")
}

fn check_some(operand: &str, layout: &GroupedLayout) -> Result<[usize; 2]> {
    layout.members().first().map(|first| [first.rows(), first.cols()]).ok_or_else(|| no_members(operand))
}

/// What is wrong with rows of groups, and how they lie right.
fn refuse_rows<T>(operand: &str, what: String, rule: String) -> Result<T> {
    let remedy = "lay members out by GroupedLayout::aligned, to 128 * columns elements, or at such offsets by GroupedLayout::new";
    Err(Error::shape(operand, what, rule, remedy))
}

fn said(t: usize, member: &GroupedMember) -> String {
    format!("member {t}, {} x {} at offset {}", member.rows(), member.cols(), member.offset())
}

/// Rows and columns of the matrix of all rows of a buffer of so many elements. What the host knows of where members lie is compared; of what it does not, no other memory than the buffer's is read.
fn padded(operand: &str, cols: usize, known: &Known, buffer_len: usize) -> Result<[usize; 2]> {
    check_quantize_cols(operand, cols)?;
    let step = cols.saturating_mul(STEP);
    let [_, cols_lent, offsets_lent] = known.lent;
    for (t, member) in known.written.iter().flat_map(|layout| layout.members()).enumerate() {
        if !cols_lent && member.cols() != cols {
            return refuse_rows(operand, said(t, member), format!("must have {cols} columns, as all others"));
        }
        if !offsets_lent && (step == 0 || !member.offset().is_multiple_of(step)) {
            let rule = format!("must begin at a multiple of {STEP} rows of {cols} columns: of {step} elements");
            return refuse_rows(operand, said(t, member), rule);
        }
    }
    if step == 0 || !buffer_len.is_multiple_of(step) {
        let rule = format!("must end at a multiple of {STEP} rows of {cols} columns: of {step} elements");
        return refuse_rows(operand, format!("a buffer of {buffer_len} elements"), rule);
    }
    Ok([buffer_len / cols, cols])
}

/// Rows and columns of all matrices, one below the other.
fn stacked(operand: &str, layout: &GroupedLayout, transposed: bool) -> Result<[usize; 2]> {
    let shape = check_some(operand, layout)?;
    let [rows, cols] = if transposed { [shape[1], shape[0]] } else { shape };
    check_quantize_cols(operand, cols)?;
    let remedy = "lay members of one shape out by GroupedLayout::packed";
    if !rows.is_multiple_of(STEP) {
        return Err(Error::shape(
            operand,
            format!("members of {rows} x {cols} as they are stored"),
            format!("must have a multiple of {STEP} rows, as matrices of groups do"),
            "pad the rows of each matrix with zeros",
        ));
    }
    for (t, member) in layout.members().iter().enumerate() {
        let what = || said(t, member);
        if [member.rows(), member.cols()] != shape {
            let rule = format!("must be {} x {}, as member 0", shape[0], shape[1]);
            return Err(Error::shape(operand, what(), rule, remedy));
        }
        let place = t * rows * cols;
        if member.offset() != place {
            let rule = format!("must begin at {place}, right behind the {t} before it: without gaps");
            return Err(Error::shape(operand, what(), rule, remedy));
        }
    }
    Ok([layout.members().len() * rows, cols])
}

impl GroupedMatrix<'_> {
    /// Rows of the whole operand.
    pub fn rows(&self) -> usize {
        self.matrix.rows()
    }

    /// Columns: the length along which a product sums.
    pub fn cols(&self) -> usize {
        self.matrix.cols()
    }

    /// How it is read, but for which scale is whose.
    pub fn scheme(&self) -> Scheme {
        self.matrix.scheme()
    }

    /// The members, one a group.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The decode factor of each member, FP32, as [`GroupedGemmArgs::scales_of_a`](crate::GroupedGemmArgs::scales_of_a) takes them; `None` where all share one.
    pub fn scales(&self) -> Option<DeviceBytes<'_>> {
        self.scales.map(DeviceBuffer::view)
    }

    pub(crate) fn matrix(&self) -> &QuantMatrix {
        &self.matrix
    }

    /// The matrices of groups, not their rows.
    pub(crate) fn is_stacked(&self) -> bool {
        self.stacked
    }

    /// The first member of which the host knows that it does not begin where a slot of so many rows does, and its row.
    pub(crate) fn beside_slots(&self, slot_rows: usize) -> Option<(usize, usize)> {
        let members = self.begins.iter().flat_map(|layout| layout.members());
        let rows = members.map(|member| member.offset() / self.cols().max(1));
        rows.enumerate().find(|(t, row)| t.checked_mul(slot_rows) != Some(*row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: &str = "a grouped tensor";

    #[track_caller]
    fn refused<T>(result: Result<T>, words: &[&str]) {
        let said = result.map_or_else(|refused| refused.to_string(), |_| String::new());
        assert!(words.iter().all(|word| said.contains(word)), "{said:?} lacks one of {words:?}");
    }

    #[test]
    fn matrices_of_groups_are_members_of_one_shape_without_gaps() {
        let packed = |shapes: &[[usize; 2]]| GroupedLayout::packed(shapes).unwrap();
        let ask = |layout: &GroupedLayout, transposed| stacked(WHAT, layout, transposed);
        let three = packed(&[[256, 384]; 3]);
        assert_eq!(ask(&three, false).unwrap(), [768, 384]);
        // Stored transposed a member has as many rows as the data have columns.
        assert_eq!(ask(&three, true).unwrap(), [3 * 384, 256]);
        assert_eq!(ask(&packed(&[[0, 16]; 2]), false).unwrap(), [0, 16]);
        refused(ask(&packed(&[]), false), &["no members", "one for each group"]);
        refused(ask(&packed(&[[256, 384], [128, 384]]), false), &["member 1, 128 x 384", "256 x 384, as member 0"]);
        refused(ask(&packed(&[[256, 384], [256, 400]]), false), &["member 1, 256 x 400"]);
        refused(ask(&packed(&[[200, 128]; 2]), false), &["200 x 128", "multiple of 128 rows"]);
        refused(ask(&packed(&[[256, 400]; 2]), true), &["400 x 256 as they are stored", "multiple of 128 rows"]);
        refused(ask(&packed(&[[256, 40]; 2]), false), &["40", "multiple of 16"]);
        let late = GroupedLayout::new(&[[128, 32]; 2], &[16, 4112], 8208).unwrap();
        refused(ask(&late, false), &["member 0", "offset 16", "must begin at 0"]);
        let gap = GroupedLayout::aligned(&[[128, 32]; 2], 8192).unwrap();
        refused(ask(&gap, false), &["member 1", "offset 8192", "must begin at 4096", "packed"]);
        // What lies behind the last is none of them.
        let room = GroupedLayout::new(&[[128, 32]; 2], &[0, 4096], 10_000).unwrap();
        assert_eq!(ask(&room, false).unwrap(), [256, 32]);
    }

    #[test]
    fn rows_of_groups_begin_at_multiples_of_128() {
        let known = |layout: &GroupedLayout, lent| Known { written: Some(Arc::new(layout.clone())), lent };
        let of = |layout: &GroupedLayout, buffer_len| {
            let [_, cols] = check_some(WHAT, layout)?;
            padded(WHAT, cols, &known(layout, [true, false, false]), buffer_len)
        };
        let ask = |layout: &GroupedLayout| of(layout, layout.buffer_len());
        let shapes = [[100, 48], [0, 48], [256, 48], [1, 48]];
        let aligned = GroupedLayout::aligned(&shapes, 128 * 48).unwrap();
        assert_eq!(ask(&aligned).unwrap(), [512, 48]);
        refused(of(&aligned, aligned.buffer_len() + 48), &["24624 elements", "must end at a multiple of 128 rows"]);
        refused(
            ask(&GroupedLayout::packed(&shapes).unwrap()),
            &["member 1, 0 x 48 at offset 4800", "6144 elements", "aligned"],
        );
        refused(ask(&GroupedLayout::packed(&[]).unwrap()), &["no members"]);
        refused(ask(&GroupedLayout::packed(&[[128, 40]]).unwrap()), &["multiple of 16"]);
        let other = GroupedLayout::packed(&[[128, 48], [128, 64]]).unwrap();
        refused(ask(&other), &["member 1, 128 x 64", "48 columns, as all others"]);
        refused(ask(&GroupedLayout::packed(&[[128, 0]]).unwrap()), &[WHAT]);
        // What the device alone knows is not compared: rows are those that the buffer holds, and no others.
        let anywhere = |cols, buffer_len| padded(WHAT, cols, &Known::default(), buffer_len);
        assert_eq!(anywhere(48, 4 * 128 * 48).unwrap(), [512, 48]);
        assert_eq!(anywhere(48, 0).unwrap(), [0, 48]);
        refused(anywhere(48, 4 * 128 * 48 + 16), &["24592 elements", "must end at a multiple of 128 rows"]);
        refused(anywhere(40, 128 * 40), &["multiple of 16"]);
        refused(anywhere(0, 0), &[WHAT]);
        refused(anywhere(usize::MAX / 32 * 16, 16), &["16 elements", "must end"]);
        let odd = GroupedLayout::new(&shapes, &[16, 4816, 4816, 17104], 24576).unwrap();
        let lent = |lent, cols| padded(WHAT, cols, &known(&odd, lent), 24576);
        refused(lent([false; 3], 48), &["member 0, 100 x 48 at offset 16", "must begin"]);
        assert_eq!(lent([false, false, true], 48).unwrap(), [512, 48]);
        // Columns that the caller says are compared with those that the host knows.
        refused(lent([false, false, true], 96), &["member 0, 100 x 48", "must have 96 columns"]);
        assert_eq!(lent([false, true, true], 96).unwrap(), [256, 96]);
        refused(lent([false, true, false], 96), &["member 0", "must begin at a multiple of 128 rows of 96 columns"]);
    }

    #[test]
    fn the_host_knows_what_it_wrote_and_nobody_else_may_write() {
        let layout = Arc::new(GroupedLayout::packed(&[[128, 32]]).unwrap());
        let known = |written: bool, lent| Known { written: written.then(|| layout.clone()), lent };
        let (a, b) = (["", "columns", ""], ["rows", "columns", "offsets"]);
        for needed in [a, b] {
            assert_eq!(written(WHAT, &known(true, [false; 3]), needed).unwrap(), layout);
            refused(
                written(WHAT, &known(false, [false; 3]), needed),
                &["the device alone knows", "from_host", "to_host"],
            );
            refused(written(WHAT, &known(true, [false, true, false]), needed), &["columns of its layout"]);
        }
        let offsets = known(true, [false, false, true]);
        assert!(written(WHAT, &offsets, a).is_ok());
        refused(written(WHAT, &offsets, b), &["offsets of its layout"]);
        // Where rows of groups begin and how many they are the device may choose, of matrices not.
        let rows = known(true, [true, false, false]);
        assert!(written(WHAT, &rows, a).is_ok());
        refused(written(WHAT, &rows, b), &["rows of its layout", "nobody reads them back"]);
    }
}
