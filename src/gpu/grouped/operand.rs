//! [`GroupedOperand`]: a matrix, or a grouped tensor whose members have scales of their own, as A or B of a product of groups.

use super::GroupedRows;
use crate::error::{Error, Result};
use crate::gpu::matrix::{GroupedMatrix, QuantMatrix};

/// A or B of [`GroupedGemmArgs::new`](super::GroupedGemmArgs::new): a quantized matrix, or a grouped tensor as one
/// ([`GroupedTensor::padded_rows`](crate::GroupedTensor::padded_rows) for A, [`GroupedTensor::stacked`](crate::GroupedTensor::stacked) for B).
#[derive(Clone, Copy)]
pub struct GroupedOperand<'a> {
    pub(super) matrix: &'a QuantMatrix,
    pub(super) grouped: Option<&'a GroupedMatrix<'a>>,
}

impl<'a> From<&'a QuantMatrix> for GroupedOperand<'a> {
    fn from(matrix: &'a QuantMatrix) -> Self {
        Self { matrix, grouped: None }
    }
}

impl<'a> From<&'a GroupedMatrix<'_>> for GroupedOperand<'a> {
    fn from(grouped: &'a GroupedMatrix<'_>) -> Self {
        Self { matrix: grouped.matrix(), grouped: Some(grouped) }
    }
}

/// Refuses grouped tensors whose members are not the groups of the product.
pub(super) fn check_members(
    [a, b]: [Option<&GroupedMatrix<'_>>; 2],
    groups: usize,
    rows: &GroupedRows<'_>,
) -> Result<()> {
    for (operand, tensor, stacked) in [("A", a, false), ("B", b, true)] {
        let Some(tensor) = tensor else { continue };
        if tensor.is_stacked() != stacked {
            let (reason, remedy) = match stacked {
                true => ("its members are rows of groups", "pass GroupedTensor::stacked"),
                false => ("its members are matrices of groups", "pass GroupedTensor::padded_rows"),
            };
            return Err(Error::unsupported(format!("such a grouped tensor as {operand}"), reason, remedy));
        }
        if tensor.members() != groups {
            return Err(Error::shape(
                format!("grouped tensor as {operand}"),
                format!("{} members", tensor.members()),
                format!("must have one for each of {groups} groups"),
                "pass tensor and places of the same groups",
            ));
        }
    }
    if let (Some(a), GroupedRows::Masked { slot_rows, .. }) = (a, rows)
        && let Some((t, row)) = a.beside_slots(*slot_rows)
    {
        return Err(Error::shape(
            "grouped tensor as A",
            format!("member {t} at row {row}"),
            format!("must begin at row {t} * {slot_rows}, with its slot"),
            "pass slots as long as members lie apart, or say where groups start (GroupedRows::Contiguous)",
        ));
    }
    Ok(())
}
