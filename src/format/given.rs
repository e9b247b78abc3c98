//! [`GivenScale`]: a scale that the caller brings instead of one found from the data, and what the FP32 scale of a group is.

use crate::error::{Error, Result};

/// An FP32 scale from calibration, a checkpoint, delayed scaling, or a reduction over several GPUs.
///
/// Any FP32 number is taken, as on a device, which could not refuse one: what comes of 0, NaN, infinities and numbers below 0 is in docs/numerics.md ("Grouped
/// tensors"). An amax is one of data, 0 or more: nothing is said of what others make.
///
/// One for the whole matrix: of FP8 with one scale, or the second level of NVFP4. `T` is the number, or the device memory that
/// holds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GivenScale<T = f32> {
    /// The factor for the data, e.g. FlashInfer's global scale; the stored scale is `fl(1 / encode)`.
    Encode(T),
    /// The factor for the codes, which is stored, e.g. ModelOpt's `input_scale` and `weight_scale_2`; the data are multiplied
    /// by `fl(1 / scale)`.
    Decode(T),
    /// The largest magnitude, from which the recipe finds both, e.g. TransformerEngine's amax. NVFP4 only.
    Amax(T),
}

impl<T> GivenScale<T> {
    /// The number, whatever it means.
    pub fn number(&self) -> &T {
        let (Self::Encode(number) | Self::Decode(number) | Self::Amax(number)) = self;
        number
    }

    /// The same with another number, e.g. a copy of it in device memory.
    pub fn with_number<U>(&self, number: U) -> GivenScale<U> {
        match self {
            Self::Encode(_) => GivenScale::Encode(number),
            Self::Decode(_) => GivenScale::Decode(number),
            Self::Amax(_) => GivenScale::Amax(number),
        }
    }

    /// Why an FP8 cast with a given scale takes no amax.
    pub(crate) fn needs_recipe(&self) -> Error {
        Error::unsupported(
            "a given amax for an FP8 cast",
            "the rule that makes a scale of it is part of a recipe, and this cast has none",
            "pass the encode of the recipe's group_scale of that amax as GivenScale::Encode",
        )
    }
}

impl GivenScale {
    /// Both factors of an FP8 cast.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an amax.
    pub fn factors(self) -> Result<GroupScale> {
        match self {
            Self::Encode(encode) => Ok(GroupScale { encode, scale: 1.0 / encode }),
            Self::Decode(scale) => Ok(GroupScale { encode: 1.0 / scale, scale }),
            Self::Amax(_) => Err(self.needs_recipe()),
        }
    }
}

/// The two factors of a group of FP8 codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupScale {
    /// Multiplies the data before the cast.
    pub encode: f32,
    /// Multiplies the codes; the stored scale.
    pub scale: f32,
}
