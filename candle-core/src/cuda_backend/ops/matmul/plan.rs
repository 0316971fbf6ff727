//! The choice of a kernel or of a library for a product: a pure function of shapes, dtypes, strides and the presence of cuBLASLt.

use crate::{DType, Result};

/// Maximum number of rows of `vector.rs`: more are faster with matrix instructions.
const MAX_ROWS: usize = 8;
/// The same of 16-bit floats where cuBLASLt is installed: 8 rows of an 8B model take an H200 11.5 ms with this kernel, 32 rows 4.9 ms with Lt.
const MAX_ROWS_BESIDE_LT: usize = 2;

/// Everything that the choice depends on, except cuBLASLt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) operands: DType,
    pub(super) result: DType,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Number of pairs of matrices.
    pub(super) batch: usize,
    /// Number of dimensions that count them, after merging.
    pub(super) batch_rank: usize,
    /// Strides of the left operand `(m, k)` between rows and between columns.
    pub(super) lhs: (usize, usize),
    /// Strides of the right operand `(k, n)`.
    pub(super) rhs: (usize, usize),
    /// Whether the operands and the weights of the norm begin at multiples of 16 bytes.
    pub(super) aligned: bool,
    /// Whether both operands are contiguous, in row-major order.
    pub(super) contiguous: bool,
    /// Whether the product is followed by sums at most, and nothing precedes it.
    pub(super) sums: bool,
}

/// The presence of cuBLASLt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lt {
    Missing,
    Installed,
    /// It is installed, but has no algorithm for this product.
    Refuses,
}

/// The kernel or library that computes a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// The kernel for few rows, `vector.rs`.
    Vector,
    /// cuBLASLt, `lt.rs`.
    Lt(Matrices),
    /// Another plan, of copies of the operands in row-major order: cuBLASLt supports neither general strides nor batches in several
    /// dimensions.
    Copies,
    /// The kernel for any dtype and strides, `plain.rs`. It computes no sums, norm, gate or activation.
    Plain,
}

/// The operands in cuBLASLt's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrices {
    pub(super) lhs: Matrix,
    pub(super) rhs: Matrix,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrix {
    /// Whether its memory holds the transpose of a row-major matrix.
    pub(super) transposed: bool,
    /// Stride between the contiguous rows or columns.
    pub(super) step: usize,
}

/// The plan of a product that is not empty. `lt` is called only if the plan depends on it, because its answer may load the library.
pub(super) fn plan(facts: &Facts, lt: impl FnOnce() -> Result<Lt>) -> Result<Plan> {
    if facts.operands == DType::F32 && facts.has_few_rows(MAX_ROWS) {
        return Ok(Plan::Vector);
    }
    let lt = lt()?;
    let most = match lt {
        Lt::Missing => MAX_ROWS,
        Lt::Installed | Lt::Refuses => MAX_ROWS_BESIDE_LT,
    };
    if facts.has_few_rows(most) {
        return Ok(Plan::Vector);
    }
    if lt == Lt::Installed && facts.sums {
        if let Some(matrices) = matrices(facts) {
            return Ok(Plan::Lt(matrices));
        }
    }
    let helps = matches!(
        facts.operands,
        DType::F16 | DType::BF16 | DType::F32 | DType::F64
    );
    if helps && lt != Lt::Missing && !facts.contiguous {
        return Ok(Plan::Copies);
    }
    Ok(Plan::Plain)
}

/// The operands in cuBLASLt's view; `None` if it supports dtypes, strides or sizes in no form.
pub(super) fn matrices(facts: &Facts) -> Option<Matrices> {
    let (operands, result) = (facts.operands, facts.result);
    let fits = match operands {
        DType::F16 | DType::BF16 => result == operands || result == DType::F32,
        DType::F32 | DType::F64 => result == operands,
        _ => false,
    };
    if !fits || facts.batch_rank > 1 {
        return None;
    }
    let (m, n, k) = (facts.m, facts.n, facts.k);
    let lhs = Matrix::new(facts.lhs, (m, k))?;
    let rhs = Matrix::new(facts.rhs, (k, n))?;
    let sizes = [m, n, k, facts.batch, lhs.step, rhs.step];
    let fits = sizes.iter().all(|size| *size <= i32::MAX as usize);
    fits.then_some(Matrices { lhs, rhs })
}

impl Facts {
    /// Whether there are at most `most` rows and `vector.rs` supports the product.
    fn has_few_rows(&self, most: usize) -> bool {
        if !matches!(self.operands, DType::F32 | DType::F16 | DType::BF16) {
            return false;
        }
        let lanes = 16 / self.operands.size_in_bytes();
        let sizes = [self.k, self.lhs.0, self.rhs.1];
        self.m <= most
            && self.batch == 1
            && self.lhs.1 == 1
            && self.rhs.0 == 1
            && self.aligned
            && sizes.iter().all(|size| size.is_multiple_of(lanes))
    }
}

impl Matrix {
    /// `None` if neither rows nor columns are contiguous.
    fn new((row, column): (usize, usize), (rows, columns): (usize, usize)) -> Option<Self> {
        // A single row or column may have any stride.
        let by_rows = (column == 1 || columns == 1) && (rows == 1 || row >= columns);
        let by_columns = (row == 1 || rows == 1) && (columns == 1 || column >= rows);
        if by_rows {
            Some(Self {
                transposed: false,
                step: if rows == 1 { columns } else { row },
            })
        } else if by_columns {
            Some(Self {
                transposed: true,
                step: if columns == 1 { rows } else { column },
            })
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A contiguous `x (m, k)` times a contiguous weight `(n, k)`, transposed.
    fn linear(operands: DType, (m, n, k): (usize, usize, usize)) -> Facts {
        Facts {
            operands,
            result: operands,
            m,
            n,
            k,
            batch: 1,
            batch_rank: 0,
            lhs: (k, 1),
            rhs: (1, k),
            aligned: true,
            contiguous: false,
            sums: true,
        }
    }

    /// Two contiguous matrices.
    fn contiguous(operands: DType, (m, n, k): (usize, usize, usize)) -> Facts {
        Facts {
            rhs: (n, 1),
            contiguous: true,
            ..linear(operands, (m, n, k))
        }
    }

    fn chosen(facts: &Facts, lt: Lt) -> Plan {
        plan(facts, || Ok(lt)).unwrap()
    }

    fn matrix(transposed: bool, step: usize) -> Matrix {
        Matrix { transposed, step }
    }

    fn is_by_lt(facts: &Facts) -> bool {
        matches!(chosen(facts, Lt::Installed), Plan::Lt(_))
    }

    #[test]
    fn few_rows_are_read_once() {
        use DType::{BF16, F16, F32, F64};
        for (dtype, rows, lt, expected) in [
            (F32, 1, Lt::Installed, true),
            (F32, 8, Lt::Installed, true),
            (F32, 8, Lt::Missing, true),
            (F32, 9, Lt::Missing, false),
            (F16, 2, Lt::Installed, true),
            (F16, 3, Lt::Installed, false),
            (F16, 3, Lt::Refuses, false),
            (F16, 8, Lt::Missing, true),
            (F16, 9, Lt::Missing, false),
            (BF16, 2, Lt::Installed, true),
            (BF16, 3, Lt::Installed, false),
            (F64, 1, Lt::Missing, false),
        ] {
            let plan = chosen(&linear(dtype, (rows, 4096, 4096)), lt);
            assert_eq!(plan == Plan::Vector, expected, "{dtype:?} {rows} {lt:?}");
        }
    }

    #[test]
    fn few_rows_of_other_forms_are_not_read_by_lanes() {
        let fits = linear(DType::F16, (1, 64, 64));
        for facts in [
            Facts {
                aligned: false,
                ..fits
            },
            Facts {
                batch: 2,
                batch_rank: 1,
                ..fits
            },
            Facts { k: 68, ..fits },
            Facts {
                lhs: (68, 1),
                ..fits
            },
            Facts {
                rhs: (1, 68),
                ..fits
            },
            Facts {
                lhs: (64, 2),
                ..fits
            },
            Facts {
                rhs: (64, 1),
                ..fits
            },
        ] {
            assert_ne!(chosen(&facts, Lt::Missing), Plan::Vector, "{facts:?}");
        }
        // Rows may have gaps of whole lanes, and the result may be wider.
        let facts = Facts {
            lhs: (128, 1),
            result: DType::F32,
            ..fits
        };
        assert_eq!(chosen(&facts, Lt::Missing), Plan::Vector);
    }

    #[test]
    fn few_rows_of_f32_do_not_load_the_library() {
        let asked = || -> Result<Lt> { crate::bail!("asked") };
        let facts = linear(DType::F32, (8, 64, 64));
        assert_eq!(plan(&facts, asked).unwrap(), Plan::Vector);
        assert!(plan(&linear(DType::F16, (1, 64, 64)), asked).is_err());
    }

    #[test]
    fn many_rows_go_to_the_library() {
        use DType::{BF16, F16, F32, F64, I64, U8};
        for dtype in [F16, BF16, F32, F64] {
            let plan = chosen(&linear(dtype, (64, 128, 32)), Lt::Installed);
            let (lhs, rhs) = (matrix(false, 32), matrix(true, 32));
            assert_eq!(plan, Plan::Lt(Matrices { lhs, rhs }), "{dtype:?}");
            let plan = chosen(&contiguous(dtype, (64, 128, 32)), Lt::Installed);
            let rhs = matrix(false, 128);
            assert_eq!(plan, Plan::Lt(Matrices { lhs, rhs }), "{dtype:?}");
        }
        for dtype in [U8, I64] {
            let facts = contiguous(dtype, (64, 128, 32));
            assert_eq!(chosen(&facts, Lt::Installed), Plan::Plain, "{dtype:?}");
        }
        // 16-bit floats may have a result of 32 bits.
        let wide = |operands| Facts {
            result: F32,
            ..contiguous(operands, (64, 128, 32))
        };
        assert!(is_by_lt(&wide(F16)) && is_by_lt(&wide(BF16)) && !is_by_lt(&wide(F64)));
    }

    #[test]
    fn the_library_has_limits() {
        let fits = Facts {
            batch: 6,
            batch_rank: 1,
            ..contiguous(DType::F32, (64, 128, 32))
        };
        assert!(is_by_lt(&fits));
        // Batches in several dimensions; more columns than an i32 counts; a norm, a gate or an activation.
        let large = i32::MAX as usize + 1;
        for facts in [
            Facts {
                batch_rank: 2,
                ..fits
            },
            Facts {
                n: large,
                rhs: (large, 1),
                ..fits
            },
            Facts {
                sums: false,
                ..fits
            },
        ] {
            assert_eq!(chosen(&facts, Lt::Installed), Plan::Plain, "{facts:?}");
            let strided = Facts {
                contiguous: false,
                ..facts
            };
            assert_eq!(chosen(&strided, Lt::Installed), Plan::Copies, "{facts:?}");
        }
    }

    #[test]
    fn copies_are_for_the_library() {
        // Neither rows nor columns are contiguous.
        let strided = |dtype| Facts {
            lhs: (64, 2),
            ..linear(dtype, (64, 128, 32))
        };
        let f32 = strided(DType::F32);
        assert_eq!(chosen(&f32, Lt::Installed), Plan::Copies);
        assert_eq!(chosen(&f32, Lt::Missing), Plan::Plain);
        assert_eq!(chosen(&strided(DType::I64), Lt::Installed), Plan::Plain);
        // A product that it refuses may have an algorithm in row-major order, unless it already is.
        let linear = linear(DType::F16, (64, 128, 32));
        assert_eq!(chosen(&linear, Lt::Refuses), Plan::Copies);
        let contiguous = contiguous(DType::F16, (64, 128, 32));
        assert_eq!(chosen(&contiguous, Lt::Refuses), Plan::Plain);
    }

    #[test]
    fn matrices_are_seen_by_columns() {
        // Contiguous rows, with or without a gap between them.
        assert_eq!(Matrix::new((4, 1), (3, 4)), Some(matrix(false, 4)));
        assert_eq!(Matrix::new((9, 1), (3, 4)), Some(matrix(false, 9)));
        // Contiguous columns.
        assert_eq!(Matrix::new((1, 3), (3, 4)), Some(matrix(true, 3)));
        // Neither.
        assert_eq!(Matrix::new((8, 2), (3, 4)), None);
        // Rows that repeat.
        assert_eq!(Matrix::new((0, 1), (3, 4)), None);
        // One row or one column.
        assert_eq!(Matrix::new((77, 1), (1, 4)), Some(matrix(false, 4)));
        assert_eq!(Matrix::new((77, 3), (1, 4)), Some(matrix(true, 3)));
        assert_eq!(Matrix::new((2, 5), (3, 1)), Some(matrix(false, 2)));
    }
}
