use super::common::{assert_close, assert_values, data, dtypes, layouts, reference};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::rotary_emb::{
    rope, rope_heads, rope_heads_slow, rope_i, rope_i_heads, rope_i_heads_slow, rope_i_slow,
    rope_slow, rope_thd, rope_thd_slow,
};

type Form = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
type HeadsForm = fn(&Tensor, &Tensor, &Tensor, usize) -> Result<Tensor>;

// The fused form, its plain form, and the dimension of the sequence.
const FORMS: [(&str, Form, Form, usize); 3] = [
    ("rope", rope, rope_slow, 2),
    ("rope_i", rope_i, rope_i_slow, 2),
    ("rope_thd", rope_thd, rope_thd_slow, 1),
];

const SHAPES: [[usize; 4]; 7] = [
    [1, 1, 1, 2],
    [1, 4, 1, 64],
    [2, 3, 5, 6],
    [2, 5, 3, 34],
    [1, 8, 33, 64],
    [2, 3, 0, 4],
    [0, 3, 2, 4],
];

fn fused_rope(dev: &Device) -> Result<()> {
    for (name, fused, plain, seq_dim) in FORMS {
        for (dtype, tolerance) in dtypes(dev) {
            for dims in SHAPES {
                let (batch, seq, half) = (dims[0], dims[seq_dim], dims[3] / 2);
                // As long as the input, longer and strided, and one for each sequence of the batch.
                let angles = |kind: usize| match kind {
                    0 => data(&[seq, half], dtype, dev),
                    1 => data(&[half, seq + 3], dtype, dev)?.t(),
                    _ => data(&[batch, seq + 1, half], dtype, dev),
                };
                for (layout, xs) in layouts(&dims, dtype, dev)? {
                    for kind in 0..3 {
                        let case = format!("{name} {dtype:?} {dims:?} {layout}, angles {kind}");
                        let cos = angles(kind)?;
                        let sin = (angles(kind)? * 0.5)?;
                        let got = fused(&xs, &cos, &sin)?;
                        assert_eq!((got.dtype(), got.dims()), (dtype, xs.dims()), "{case}");
                        if xs.elem_count() == 0 {
                            continue;
                        }
                        let [rx, rc, rs] = [reference(&xs)?, reference(&cos)?, reference(&sin)?];
                        let expected = plain(&rx, &rc, &rs)?;
                        // Products of up to 4 are subtracted from each other: the error scales with them.
                        assert_close(&case, &got, &expected, 2. * tolerance);
                        // The plain form rounds both products and their sum.
                        let got = plain(&xs, &cos, &sin)?;
                        let tolerance = 8. * tolerance;
                        assert_close(&format!("plain {case}"), &got, &expected, tolerance);
                    }
                }
            }
        }
    }
    Ok(())
}

// The fused form and its plain form.
const HEADS_FORMS: [(&str, HeadsForm, HeadsForm); 2] = [
    ("rope", rope_heads, rope_heads_slow),
    ("rope_i", rope_i_heads, rope_i_heads_slow),
];

fn rope_of_the_first_heads(dev: &Device) -> Result<()> {
    let cases = HEADS_FORMS
        .into_iter()
        .flat_map(|form| dtypes(dev).into_iter().map(move |dtype| (form, dtype)));
    for ((name, fused, plain), (dtype, tolerance)) in cases {
        let dims = [2, 5, 3, 6];
        let (cos, sin) = (
            data(&[3, 3], dtype, dev)?,
            (data(&[3, 3], dtype, dev)? * 0.5)?,
        );
        for (layout, xs) in layouts(&dims, dtype, dev)? {
            let [rx, rc, rs] = [reference(&xs)?, reference(&cos)?, reference(&sin)?];
            for rotated in [0, 1, 4, 5] {
                let case = format!("{name} {dtype:?} {layout}, {rotated} heads");
                let got = fused(&xs, &cos, &sin, rotated)?;
                let expected = plain(&rx, &rc, &rs, rotated)?;
                assert_close(&case, &got, &expected, 2. * tolerance);
                // The others are not touched at all.
                let rest = |t: &Tensor| t.narrow(1, rotated, 5 - rotated);
                assert_close(&case, &rest(&got)?, &reference(&rest(&xs)?)?, 0.);
            }
            assert!(fused(&xs, &cos, &sin, 6).is_err(), "{name} {layout}");
        }
    }
    Ok(())
}

fn rope_values(dev: &Device) -> Result<()> {
    // Positions 1 and 2, angles position * 1 and position * 0.01: (x0 cos - x1 sin, x0 sin + x1 cos) in Python's float64.
    let xs = Tensor::arange(1f32, 9., dev)?.reshape((1, 1, 2, 4))?;
    let angles = Tensor::new(&[[1f32, 0.01], [2., 0.02]], dev)?;
    let (cos, sin) = (angles.cos()?, angles.sin()?);
    let halves = [
        -1.9841106485555495,
        1.959900667496664,
        2.4623779024123156,
        4.019799668334994,
        -8.445816170515483,
        5.838810706452802,
        1.633459278298412,
        8.11839205349262,
    ];
    let neighbours = [
        -1.1426396637476532,
        1.922075596544176,
        2.9598506679133294,
        4.029799501669161,
        -7.536518743689802,
        2.049606114845554,
        6.83861071311938,
        8.138390720185953,
    ];
    assert_values("rope", &rope(&xs, &cos, &sin)?, &halves, 1e-5);
    assert_values("rope_i", &rope_i(&xs, &cos, &sin)?, &neighbours, 1e-5);
    let thd = rope_thd(&xs.transpose(1, 2)?, &cos, &sin)?;
    assert_values("rope_thd", &thd, &halves, 1e-5);
    Ok(())
}

fn rope_from_a_position(dev: &Device) -> Result<()> {
    // The last row of a long prompt equals that token alone with its own angles.
    let xs = data(&[1, 2, 7, 8], DType::F32, dev)?;
    let (cos, sin) = (
        data(&[7, 4], DType::F32, dev)?,
        data(&[8, 4], DType::F32, dev)?,
    );
    let whole = rope(&xs, &cos, &sin)?.narrow(2, 6, 1)?;
    let alone = rope(
        &xs.narrow(2, 6, 1)?,
        &cos.narrow(0, 6, 1)?,
        &sin.narrow(0, 6, 1)?,
    )?;
    assert_close("last", &alone, &whole, 1e-6);
    Ok(())
}

test_device!(fused_rope);
test_device!(rope_of_the_first_heads);
test_device!(rope_values);
test_device!(rope_from_a_position);
