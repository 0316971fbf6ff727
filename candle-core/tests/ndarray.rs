//! Tensors from nested arrays, slices and vectors.

use candle_core::{DType, Device, NdArray, Result, Tensor};

fn check<A: NdArray>(array: A, shape: &[usize]) -> Result<()> {
    let t = Tensor::new(array, &Device::Cpu)?;
    assert_eq!((t.dims(), t.dtype()), (shape, DType::U32));
    let want: Vec<u32> = (0..shape.iter().product::<usize>() as u32).collect();
    assert_eq!(t.flatten_all()?.to_vec1::<u32>()?, want);
    Ok(())
}

#[test]
fn every_form() -> Result<()> {
    check(0u32, &[])?;
    check(&[0u32, 1, 2], &[3])?;
    check(&[0u32, 1, 2][..], &[3])?;
    check(vec![0u32, 1, 2], &[3])?;
    check(&[[0u32, 1, 2], [3, 4, 5]], &[2, 3])?;
    check(vec![vec![0u32, 1, 2], vec![3, 4, 5]], &[2, 3])?;
    check(vec![&[0u32, 1, 2][..], &[3, 4, 5]], &[2, 3])?;
    check(&[[[0u32], [1], [2]], [[3], [4], [5]]], &[2, 3, 1])?;
    check(
        vec![
            vec![vec![0u32], vec![1], vec![2]],
            vec![vec![3], vec![4], vec![5]],
        ],
        &[2, 3, 1],
    )?;
    check(&[[[[0u32, 1]], [[2, 3]], [[4, 5]]]], &[1, 3, 1, 2])?;
    check(
        vec![vec![
            vec![vec![0u32, 1]],
            vec![vec![2, 3]],
            vec![vec![4, 5]],
        ]],
        &[1, 3, 1, 2],
    )
}

#[test]
fn empty_forms() -> Result<()> {
    check(&[0u32; 0], &[0])?;
    check(Vec::<u32>::new(), &[0])?;
    check(&[[0u32; 0]; 2], &[2, 0])?;
    check(&[[0u32; 2]; 0], &[0, 2])?;
    check(vec![Vec::<u32>::new(); 2], &[2, 0])?;
    // The length of the missing rows is unknown.
    assert!(Tensor::new(Vec::<Vec<u32>>::new(), &Device::Cpu).is_err());
    Ok(())
}

#[test]
fn ragged_vectors_are_an_error_that_names_the_row() {
    let two = vec![vec![1u32, 2], vec![3, 4], vec![5]];
    let three = vec![vec![vec![1u32]], vec![vec![1, 2]]];
    for (error, at) in [
        (Tensor::new(two, &Device::Cpu), "item 2"),
        (Tensor::new(vec![&[1u32][..], &[]], &Device::Cpu), "item 1"),
        (Tensor::new(three, &Device::Cpu), "item 1"),
    ] {
        let error = error.expect_err("ragged").to_string();
        assert!(error.contains(at) && error.contains('['), "{error}");
    }
}

#[test]
fn the_generics_are_inner_size_first() {
    // A caller may name the generics.
    fn shape<S: candle_core::WithDType, const N: usize, const M: usize>(
        a: &[[S; N]; M],
    ) -> Vec<usize> {
        NdArray::shape(&a).expect("a matrix").into_dims()
    }
    assert_eq!(shape::<f32, 3, 2>(&[[0.; 3]; 2]), [2, 3]);
}
