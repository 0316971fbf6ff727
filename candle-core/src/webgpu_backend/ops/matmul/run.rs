//! One call of a product: its operands, its problem, and what the kernels of every regime are made for.

use std::fmt;

use super::super::index;
use super::conv::Windows;
use super::experts::Choice;
use super::extras::{Extras, ExtrasForm};
use super::operand::Scales;
use super::{split_k, MatmulParams, Plan, Problem};
use crate::webgpu_backend::kernel::{Elem, Kernel};
use crate::webgpu_backend::ops::quantized::Format;
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuDevice;
use crate::Result;

/// What the right-hand side is stored as.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rhs {
    Dense(Elem),
    Blocks(Format),
}

impl fmt::Debug for Rhs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(elem) => elem.fmt(f),
            Self::Blocks(format) => format.fmt(f),
        }
    }
}

/// What every kernel of products is made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) lhs: Elem,
    pub(super) rhs: Rhs,
    pub(super) out: Elem,
    /// Dimensions of a batch.
    pub(super) rank: usize,
    pub(super) extras: ExtrasForm,
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lhs,
            rhs,
            out,
            rank,
            extras,
        } = self;
        write!(f, "{lhs:?} x {rhs:?} -> {out:?} rank {rank}{extras:?}")
    }
}

/// The operands of one call and its problem, for the ways to run it.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) device: &'a WebGpuDevice,
    /// lhs, what rhs has, scales if there are any, dst.
    pub(super) bindings: &'a [Binding<'a>],
    pub(super) problem: &'a Problem,
    pub(super) lhs: Elem,
    pub(super) rhs: Rhs,
    pub(super) out: Elem,
    pub(super) extras: Extras<'a>,
    /// Of a convolution, whose rhs is the windows of an image. The tile kernel alone has such a form.
    pub(super) windows: Option<Windows>,
    /// What sums are multiplied by. The vector kernel has no such form.
    pub(super) scales: Scales,
    /// What elements of blocks are multiplied by where the cooperative kernel makes f16 of them.
    pub(super) factor: f32,
    /// Parts that `k` is cut into, each with a separate result in `dst`.
    pub(super) splits: usize,
    /// For a stack of matrices. The vector kernel alone has such a form.
    pub(super) choice: Option<Choice>,
}

impl<'a> Run<'a> {
    /// A product of two matrices and nothing else.
    pub(super) fn new(
        device: &'a WebGpuDevice,
        bindings: &'a [Binding<'a>],
        problem: &'a Problem,
        (lhs, rhs, out): (Elem, Rhs, Elem),
    ) -> Self {
        Self {
            device,
            bindings,
            problem,
            lhs,
            rhs,
            out,
            extras: Extras::default(),
            windows: None,
            scales: Scales::None,
            factor: 1.,
            splits: 1,
            choice: None,
        }
    }

    pub(super) fn run(&self, plan: Plan) -> Result<()> {
        match plan {
            Plan::Vector(shape) => self.vector(shape),
            Plan::Blocks(shape) => self.blocks(shape),
            Plan::Tile {
                lhs,
                rhs,
                shape,
                splits,
            } => self.split(splits, |run| run.tile(lhs, rhs, shape)),
            Plan::Cooperative { tile, splits } => self.split(splits, |run| run.cooperative(tile)),
        }
    }

    pub(super) fn form(&self) -> Form {
        Form {
            lhs: self.lhs,
            rhs: self.rhs,
            out: self.out,
            rank: self.problem.views.rank,
            extras: self.extras.form(),
        }
    }

    /// Runs `kernel` in `workgroups` workgroups for each part of `k`.
    pub(super) fn launch(
        &self,
        kernel: &impl Kernel<Params = MatmulParams>,
        workgroups: usize,
    ) -> Result<()> {
        let mut params = self.problem.params()?;
        self.extras.fill(&mut params)?;
        if let Some(choice) = self.choice {
            choice.fill(&mut params)?;
        }
        if let Some(windows) = &self.windows {
            windows.fill(&mut params);
        }
        params.factor = self.factor;
        params.splits = index(self.splits)?;
        params.chunk = index(split_k::chunk(self.problem.k, self.splits))?;
        let mut bindings = self.bindings.to_vec();
        bindings.extend(self.extras.bindings());
        let grid = self.device.grid(workgroups * self.splits, 1);
        self.device.run(kernel, &bindings, &params, grid)
    }
}
