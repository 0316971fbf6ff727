//! The tile regime: a workgroup computes a tile of the result and stages both operands through workgroup memory, in f32.

use super::operand::Scales;
use super::{Access, Form, MatmulParams, Problem, Rhs, Run, Windows};
use crate::webgpu_backend::kernel::{Caps, Kernel, Shader};
use crate::Result;

/// The shape of a workgroup, and of the tile that it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TileShape {
    /// Invocations along `n`, and along `m`.
    x: u32,
    y: u32,
    /// Elements of the result that an invocation computes, in each direction.
    size: u32,
}

impl TileShape {
    /// 128 x 128.
    pub(super) const LARGE: Self = Self::of(16, 16, 8);
    /// 64 x 64.
    pub(super) const MEDIUM: Self = Self::of(16, 16, 4);
    /// 32 x 128, for few rows.
    pub(super) const LOW: Self = Self::of(32, 8, 4);
    /// 16 x 128, for fewer.
    pub(super) const LOWEST: Self = Self::of(32, 4, 4);

    const fn of(x: u32, y: u32, size: u32) -> Self {
        Self { x, y, size }
    }

    /// Number of tiles without splitting `k`.
    pub(super) fn count(self, problem: &Problem) -> usize {
        let (m, n) = ((self.y * self.size) as usize, (self.x * self.size) as usize);
        problem.m.div_ceil(m) * problem.n.div_ceil(n) * problem.batch
    }

    /// Depth of a tile over `k`: the greatest power of two for which 16 KiB of workgroup memory hold both operands, so that parts of `k`
    /// end where tiles do.
    fn depth(self) -> u32 {
        let rows = (self.x + self.y) * self.size;
        1 << (4096 / rows).min(32).ilog2()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MatmulTile {
    form: Form,
    lhs: Access,
    rhs: Access,
    shape: TileShape,
    scales: Scales,
    /// For a convolution: the kernel's size, or 0 to read it from the parameters.
    windows: Option<[u32; 2]>,
}

impl Kernel for MatmulTile {
    type Params = MatmulParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Form { rank, rhs, .. } = self.form;
        let TileShape { x, y, size } = self.shape;
        let shader = Shader::default().tile_operand("lhs", Rhs::Dense(self.form.lhs), self.lhs);
        let shader = match (self.windows, rhs) {
            (Some(kernel), Rhs::Dense(elem)) => shader.windows(elem, kernel),
            _ => shader.tile_operand("rhs", rhs, self.rhs),
        };
        shader
            .scales(self.scales)
            .output("dst", self.form.out)
            .finish(self.form.extras.epilogue)
            .strided("lhs", rank)
            .strided("rhs", rank)
            .constant("LHS_OUTER", self.lhs == Access::Outer)
            .constant("RHS_OUTER", self.rhs == Access::Outer)
            .constant("TX", x)
            .constant("TY", y)
            .constant("SIZE", size)
            .constant("DEPTH", self.shape.depth())
            .unrolled::<MatmulParams>(
                include_str!("../../shaders/matmul_tile.wgsl"),
                &[("QUADS", size / 4), ("FOUR", 4)],
            )
    }
}

impl Run<'_> {
    pub(super) fn tile(&self, lhs: Access, rhs: Access, shape: TileShape) -> Result<()> {
        let kernel = MatmulTile {
            form: self.form(),
            lhs,
            rhs,
            shape,
            scales: self.scales,
            windows: self.windows.as_ref().map(Windows::compiled),
        };
        self.launch(&kernel, shape.count(self.problem))
    }
}
