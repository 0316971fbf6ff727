//! Streams in chunks give the same results as whole tensors.

use candle_core::streaming::{BinOp, Map, StreamTensor, StreamingBinOp, StreamingModule};
use candle_core::{test_device, DType, Device, Result, Tensor, D};

use crate::agree::{assert_same, numbers};

/// Lengths of chunks: one stream ahead, behind, without a chunk, without elements.
const LENGTHS: [[usize; 2]; 8] = [
    [3, 0],
    [0, 5],
    [2, 2],
    [0, 0],
    [1, 0],
    [4, 1],
    [0, 9],
    [7, 0],
];

/// Returns the next `len` indices of a stream; an empty chunk if `None`.
fn piece(whole: &Tensor, dim: usize, at: &mut usize, len: Option<usize>) -> Result<StreamTensor> {
    let Some(len) = len else {
        return Ok(().into());
    };
    *at += len;
    whole.narrow(dim, *at - len, len).map(StreamTensor::from)
}

fn a_binary_op_of_unequal_pieces(device: &Device) -> Result<()> {
    for (dim, shape) in [(0, [17, 2, 3]), (1, [2, 17, 3]), (2, [2, 3, 17])] {
        let lhs = numbers(&shape, DType::F32)?.to_device(device)?;
        let rhs = lhs.flip(&[dim])?.affine(2., 33.)?;
        for (op, want) in [
            (BinOp::Add, (&lhs + &rhs)?),
            (BinOp::Sub, (&lhs - &rhs)?),
            (BinOp::Mul, (&lhs * &rhs)?),
            (BinOp::Div, (&lhs / &rhs)?),
        ] {
            // A zero-length chunk is a tensor without elements, or no tensor.
            for zero in [None, Some(0)] {
                let some = |len| if len == 0 { zero } else { Some(len) };
                let mut stream = StreamingBinOp::new(op, D::Minus(shape.len() - dim));
                let (mut at, mut done) = ([0, 0], StreamTensor::empty());
                for [l, r] in LENGTHS {
                    let l = piece(&lhs, dim, &mut at[0], some(l))?;
                    let r = piece(&rhs, dim, &mut at[1], some(r))?;
                    let before = done.seq_len(dim)?;
                    let part = stream.step(&l, &r)?;
                    assert_eq!(before + part.seq_len(dim)?, at[0].min(at[1]));
                    done = done.cat2(&part, dim)?;
                }
                assert_eq!(at, [17, 17]);
                assert_same(
                    done.as_option().expect("17"),
                    &want.to_device(&Device::Cpu)?,
                    "",
                )?;
            }
        }
    }
    Ok(())
}

test_device!(a_binary_op_of_unequal_pieces);

fn row(values: &[f32]) -> Result<StreamTensor> {
    Tensor::new(values, &Device::Cpu).map(StreamTensor::from)
}

fn values(piece: &StreamTensor) -> Option<Vec<f32>> {
    piece.as_option().map(|t| t.to_vec1().expect("a vector"))
}

#[test]
fn reset_forgets_and_an_error_does_not() -> Result<()> {
    let mut stream = StreamingBinOp::new(BinOp::Sub, D::Minus1);
    assert_eq!(values(&stream.step(&row(&[1., 2.])?, &().into())?), None);
    let other = StreamTensor::from(Tensor::zeros((1, 2), DType::F32, &Device::Cpu)?);
    assert!(stream.step(&other, &().into()).is_err());
    assert!(stream.step(&().into(), &other).is_err());
    assert_eq!(
        values(&stream.step(&().into(), &row(&[5.])?)?),
        Some(vec![-4.])
    );
    stream.reset_state();
    assert_eq!(values(&stream.step(&().into(), &row(&[5.])?)?), None);
    assert_eq!(
        values(&stream.step(&row(&[9.])?, &().into())?),
        Some(vec![4.])
    );
    // Tensors of two shapes are not broadcast.
    let error = stream.forward(
        other.as_option().expect("a tensor"),
        &Tensor::zeros(2, DType::F32, &Device::Cpu)?,
    );
    assert!(error.is_err());
    Ok(())
}

#[test]
fn pieces_are_cut_and_joined() -> Result<()> {
    let (all, nothing) = (row(&[1., 2., 3.])?, StreamTensor::empty());
    assert_eq!(format!("{all:?} {nothing:?}"), "[3] Empty");
    for (offset, len, want) in [
        (0, 2, Some(vec![1., 2.])),
        (1, 9, Some(vec![2., 3.])),
        (2, 0, Some(vec![])),
        (3, 1, None),
        (usize::MAX, usize::MAX, None),
    ] {
        assert_eq!(values(&all.narrow(0, offset, len)?), want, "{offset} {len}");
        assert_eq!(values(&nothing.narrow(0, offset, len)?), None);
    }
    for (len, want) in [
        (0, [None, Some(vec![1., 2., 3.])]),
        (1, [Some(vec![1.]), Some(vec![2., 3.])]),
        (3, [Some(vec![1., 2., 3.]), None]),
        (5, [Some(vec![1., 2., 3.]), None]),
    ] {
        let (lhs, rhs) = all.split(D::Minus1, len)?;
        assert_eq!([values(&lhs), values(&rhs)], want, "{len}");
        assert_eq!(values(&lhs.cat2(&rhs, 0)?), values(&all));
    }
    assert_eq!(nothing.seq_len(7)?, 0);
    assert_eq!(nothing.shape(), None);
    assert_eq!(values(&nothing.cat2(&nothing, 0)?), None);
    assert!(all.seq_len(1).is_err() && all.narrow(1, 0, 1).is_err() && all.split(1, 1).is_err());
    let mut gone = all.clone();
    gone.reset();
    assert!(gone.as_option().is_none() && all.shape().is_some());
    assert!(StreamTensor::from(None).as_option().is_none());
    Ok(())
}

#[test]
fn a_module_sees_each_piece() -> Result<()> {
    let mut doubled = Map::new(|xs: &Tensor| xs * 2.);
    assert_eq!(values(&doubled.step(&row(&[1., 2.])?)?), Some(vec![2., 4.]));
    assert_eq!(values(&doubled.step(&StreamTensor::empty())?), None);
    doubled.reset_state();
    let refused = Map::new(|xs: &Tensor| xs.reshape(7)).step(&row(&[1.])?);
    assert!(refused.is_err());
    Ok(())
}
