//! Products: the problem, the ways to compute it, plans, and the choice among them.

pub(crate) mod args;
pub(crate) mod cache;
pub(crate) mod call;
pub(crate) mod core;
pub(crate) mod desc;
pub(crate) mod formulation;
pub(crate) mod measured;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod record;
pub(crate) mod rescale;
pub(crate) mod tune;
