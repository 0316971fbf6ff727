//! One call of a product: its operands, its problem, and the specialisation that the kernels of every regime share.

use std::fmt;

use super::super::index;
use super::conv::Windows;
use super::experts::Choice;
use super::extras::{Epilogue, Extras, ExtrasForm};
use super::operand::Scales;
use super::{split_k, MatmulParams, Plan, Problem};
use crate::webgpu_backend::kernel::{Elem, Kernel};
use crate::webgpu_backend::ops::quantized::Format;
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuDevice;
use crate::Result;

/// The storage format of the right-hand side.
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

/// The specialisation that all kernels of products share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) lhs: Elem,
    pub(super) rhs: Rhs,
    pub(super) out: Elem,
    /// Number of batch dimensions.
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

/// The operands of one call and its problem.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) device: &'a WebGpuDevice,
    /// lhs, the bindings of rhs, scales if there are any, dst.
    pub(super) bindings: &'a [Binding<'a>],
    pub(super) problem: &'a Problem,
    pub(super) lhs: Elem,
    pub(super) rhs: Rhs,
    pub(super) out: Elem,
    pub(super) extras: Extras<'a>,
    /// For a convolution, whose rhs is the windows of an image. Only the tile kernel supports it.
    pub(super) windows: Option<Windows>,
    /// The factors of sums. The vector kernel does not support them.
    pub(super) scales: Scales,
    /// The factor of elements of blocks when the cooperative kernel converts them to f16.
    pub(super) factor: f32,
    /// Number of parts of `k`, each with a separate result in `dst`.
    pub(super) splits: usize,
    /// Number of channels if the rows of the result are planes of channels, for which the extras are those of a convolution; else 0.
    pub(super) channels: usize,
    /// For a stack of matrices. Only the vector kernel supports it.
    pub(super) choice: Option<Choice>,
}

impl<'a> Run<'a> {
    /// A product of two matrices without extras.
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
            channels: 0,
            choice: None,
        }
    }

    pub(super) fn run(&self, plan: Plan) -> Result<()> {
        match plan {
            Plan::Vector(shape) => self.vector(shape),
            Plan::Blocks(shape) => self.blocks(shape),
            Plan::Rows(shape) => self.rows(shape),
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
            extras: ExtrasForm {
                epilogue: self.epilogue(),
                ..self.extras.form()
            },
        }
    }

    pub(super) fn epilogue(&self) -> Epilogue {
        Epilogue {
            planes: self.channels > 0,
            ..self.extras.epilogue()
        }
    }

    /// The parameters of the problem and of its extras.
    pub(super) fn params(&self) -> Result<MatmulParams> {
        let mut params = self.problem.params()?;
        params.channels = index(self.channels)?;
        self.extras.fill(&mut params)?;
        Ok(params)
    }

    /// Runs `kernel` in `workgroups` workgroups for each part of `k`.
    pub(super) fn launch(
        &self,
        kernel: &impl Kernel<Params = MatmulParams>,
        workgroups: usize,
    ) -> Result<()> {
        let mut params = self.params()?;
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
