//! Compares runs over several layouts with iteration element by element.

use candle_core::{nditer::MAX_DIMS, DType, Device, Layout, NdIter, Result, Shape, Tensor};

use crate::agree::VIEWS;

/// Returns all storage offsets that an iterator covers.
fn offsets<const N: usize>(iter: NdIter<N>) -> Vec<[usize; N]> {
    let (size, strides) = (iter.inner_size, iter.inner_strides);
    let run = |start: [usize; N]| {
        (0..size).map(move |i| std::array::from_fn(|n| start[n] + i * strides[n]))
    };
    iter.flat_map(run).collect()
}

#[test]
fn every_pair_of_views() -> Result<()> {
    let t = Tensor::zeros((4, 4, 4), DType::U8, &Device::Cpu)?;
    for (one, view1) in VIEWS {
        for (two, view2) in VIEWS {
            let (a, b) = (view1(&t)?, view2(&t)?);
            let shape: Vec<usize> = (0..3).map(|d| a.dims()[d].min(b.dims()[d])).collect();
            let cut = |t: &Tensor| (0..3).try_fold(t.clone(), |t, d| t.narrow(d, 0, shape[d]));
            let (a, b) = (cut(&a)?, cut(&b)?);
            let want: Vec<_> = a
                .strided_index()
                .zip(b.strided_index())
                .map(|(a, b)| [a, b])
                .collect();
            let iter = NdIter::new([a.layout(), b.layout()]);
            assert_eq!(iter.len() * iter.inner_size, want.len(), "{one} {two}");
            assert_eq!(offsets(iter), want, "{one} {two}");
        }
    }
    Ok(())
}

#[test]
fn dimensions_are_merged_where_all_layouts_allow() -> Result<()> {
    let t = Tensor::zeros((2, 3, 4), DType::U8, &Device::Cpu)?;
    let iter = NdIter::new([t.layout()]);
    assert_eq!(
        (iter.len(), iter.inner_size, iter.inner_strides),
        (1, 24, [1])
    );
    let rows = t.narrow(1, 0, 2)?;
    let iter = NdIter::new([rows.layout()]);
    assert_eq!((iter.len(), iter.inner_size), (2, 8));
    // The other layout's runs are shorter.
    let other = Tensor::zeros((2, 2, 5), DType::U8, &Device::Cpu)?.narrow(2, 1, 4)?;
    let iter = NdIter::new([rows.layout(), other.layout()]);
    assert_eq!((iter.len(), iter.inner_size), (4, 4));
    let broadcast = Tensor::zeros(1, DType::U8, &Device::Cpu)?.broadcast_as((3, 5))?;
    let iter = NdIter::new([broadcast.layout()]);
    assert_eq!(
        (iter.len(), iter.inner_size, iter.inner_strides),
        (1, 15, [0])
    );
    Ok(())
}

#[test]
fn edges() {
    let scalar = Layout::contiguous_with_offset((), 7);
    assert_eq!(
        NdIter::new([&scalar, &scalar]).collect::<Vec<_>>(),
        [[7, 7]]
    );
    for shape in [vec![0], vec![2, 0], vec![0, 3], vec![usize::MAX, 2, 0]] {
        let shape = Shape::from(shape);
        let stride = vec![1; shape.rank()];
        let mut iter = NdIter::new([&Layout::new(shape, stride, 3)]);
        assert_eq!((iter.len(), iter.next(), iter.next()), (0, None, None));
    }
    // More dimensions than the constant names, none of which merge.
    let rank = MAX_DIMS + 2;
    let reversed: Vec<usize> = (0..rank).map(|d| 1 << d).collect();
    let layout = Layout::new(Shape::from(vec![2; rank]), reversed, 0);
    let iter = NdIter::new([&layout]);
    assert_eq!((iter.len(), iter.inner_size), (1 << (rank - 1), 2));
    let want: Vec<_> = layout.strided_index().map(|i| [i]).collect();
    assert_eq!(offsets(iter), want);
    // An exhausted iterator remains exhausted.
    let mut iter = NdIter::new([&Layout::contiguous(3)]);
    assert!(iter.next().is_some());
    assert_eq!([iter.next(), iter.next()], [None, None]);
}

#[test]
#[should_panic(expected = "different shapes")]
fn layouts_must_have_one_shape() {
    NdIter::new([&Layout::contiguous(3), &Layout::contiguous((3, 1))]);
}
