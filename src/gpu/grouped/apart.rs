//! The count of clamped groups lies apart from all that its product reads and writes: a launch behind the product writes it.

use super::fit::check_places_apart;
use super::whole::Whole;
use super::{GroupedA, GroupedGemmArgs};
use crate::error::{Error, Result};
use crate::gpu::device::memory::{DeviceBytesMut, Named, Span, check_apart};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{CLAMPED, GroupPlaces};
use crate::gpu::matrix::{MatMut, QuantSpans};

/// Refuses a count that has a byte of an operand, of D or of where groups lie.
fn check_count_apart<'s>(
    operands: impl Iterator<Item = Named<'s>> + Clone,
    places: &GroupPlaces<'_>,
    d: Named<'_>,
    clamped: &Span<'s>,
) -> Result<()> {
    let count = [(CLAMPED, clamped.slice(0, 4))].into_iter();
    check_apart(places.read().chain([d]), count.clone())?;
    check_apart(operands, count)
}

/// Codes, scales and block scales, by their names.
fn named<'s>(names: [&'static str; 3], spans: &QuantSpans<'s>) -> [Option<Named<'s>>; 3] {
    let [codes, scales, block_scales] = names;
    [Some((codes, spans.codes)), Some((scales, spans.scales)), Some((block_scales, spans.block_scales))]
}

const A: [&str; 3] = ["codes of A", "scales of A", "block scales of A"];
const B: [&str; 3] = ["codes of B", "scales of B", "block scales of B"];
const DY: [&str; 3] = ["codes of dY", "scales of dY", "block scales of dY"];
const X: [&str; 3] = ["codes of X", "scales of X", "block scales of X"];

impl GroupedGemmArgs<'_> {
    /// Of a product with a count. Before the product: what is refused has written nothing.
    pub(super) fn check_count_apart(&mut self, handle: &Handle) -> Result<()> {
        let Self { a, b, groups, rows, d, bias, clamped, scales, .. } = self;
        let Some(clamped) = clamped else { return Ok(()) };
        let order = handle.queue().order();
        let bytes = d.extent_bytes();
        let (clamped, d) = (clamped.at(&order)?, d.data_mut().at(&order)?.slice(0, bytes));
        let a = match a {
            GroupedA::Quantized(a) => named(A, &a.read_in_order(&order)?),
            GroupedA::Plain(a) => [Some(("A", a.data().at(&order)?.slice(0, a.extent_bytes()))), None, None],
        };
        let b = named(B, &b.read_in_order(&order)?);
        let vectors = [
            ("bias", bias.as_ref().map(|bias| bias.data())),
            ("scales of the groups of A", scales[0].as_ref()),
            ("scales of the groups of B", scales[1].as_ref()),
        ];
        let mut others = [None; 3];
        for (other, (name, vector)) in others.iter_mut().zip(vectors) {
            *other = vector.map(|vector| Ok::<_, Error>((name, vector.at(&order)?))).transpose()?;
        }
        let operands = a.into_iter().chain(b).chain(others).flatten();
        rows.with_places(*groups, &order, |places| {
            // Products of slots do not read these numbers, but the count is made of them, behind D.
            check_places_apart(&places, &d)?;
            check_count_apart(operands, &places, ("D", d), &clamped)
        })
    }
}

impl Whole<'_> {
    /// The same of gradients in one launch.
    pub(super) fn check_count_apart(
        &self,
        handle: &Handle,
        dw: &mut MatMut<'_>,
        clamped: Option<&mut DeviceBytesMut<'_>>,
    ) -> Result<()> {
        let Some(clamped) = clamped else { return Ok(()) };
        let order = handle.queue().order();
        let bytes = dw.extent_bytes();
        let (clamped, dw) = (clamped.at(&order)?, dw.data_mut().at(&order)?.slice(0, bytes));
        let (dy, x) = (named(DY, &self.dy.read_in_order(&order)?), named(X, &self.x.read_in_order(&order)?));
        let operands = dy.into_iter().chain(x).flatten();
        self.rows.with_places(self.groups, &order, |places| check_count_apart(operands, &places, ("dW", dw), &clamped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::memory::assert_apart;

    #[test]
    fn a_count_lies_apart_from_operands_results_and_where_groups_lie() {
        let names = ["codes of A", "bias", "counts of groups", "starts of groups", "D", CLAMPED];
        assert_apart(&names, 1, 24, |at| {
            let places = GroupPlaces { groups: 3, starts: Some(&at[3]), slot_rows: 0, counts: &at[2] };
            check_count_apart([(names[0], at[0]), (names[1], at[1])].into_iter(), &places, (names[4], at[4]), &at[5])
        });
    }
}
