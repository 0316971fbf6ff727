// Rows of src as f16, each multiplied by a power of two that scales its largest element to about 2^14, so that it neither overflows nor
// loses its small elements; scales[row] is the factor of a product with the row. A workgroup converts a row, eight elements at a time. Long
// rows are converted in parts: one pass FINDS the largest element of each part, the next STORES the parts.
//
// With NORMED, rows are first multiplied by the weights of an RMS norm, whose own factor becomes a part of scales[row].

var<workgroup> largest: array<u32, WG>;
var<workgroup> squares: array<f32, WG>;

// Eight elements from i on, times the norm's weights.
fn weighted(eight: array<vec4<f32>, 2>, i: u32) -> array<vec4<f32>, 2> {
  if (!NORMED) {
    return eight;
  }
  let weight = lhs_eight(alpha_word(p.alpha_offset + i));
  return array<vec4<f32>, 2>(eight[0] * weight[0], eight[1] * weight[1]);
}

// 2^e for e from -126 to 127.
fn power_of_two(e: i32) -> f32 {
  return bitcast<f32>(u32(e + 127) << 23u);
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let at = flat(workgroup, workgroups, 0u, 1u);
  let row = at / p.parts;
  if (row >= p.rows) {
    return;
  }
  let first = p.src_offset + row * p.src_row;
  let begin = at % p.parts * p.chunk;
  let end = min(begin + p.chunk, p.k);
  // As bits, which have the order of numbers without sign, with NaN as the largest.
  var most = vec4<u32>(0u);
  var sum = 0.0;
  if (FINDS) {
    for (var i = begin + local * 8u; i < end; i += WG * 8u) {
      let word = lhs_eight(src_word(first + i));
      if (NORMED) {
        sum += dot(word[0], word[0]) + dot(word[1], word[1]);
      }
      let eight = weighted(word, i);
      most = max(most, bitcast<vec4<u32>>(eight[0]) & vec4<u32>(0x7fffffffu));
      most = max(most, bitcast<vec4<u32>>(eight[1]) & vec4<u32>(0x7fffffffu));
    }
  } else if (local < p.parts) {
    most.x = found(row * p.parts + local);
  }
  largest[local] = max(max(most.x, most.y), max(most.z, most.w));
  if (NORMED) {
    squares[local] = sum;
  }
  for (var half = WG / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local < half) {
      largest[local] = max(largest[local], largest[local + half]);
      if (NORMED) {
        squares[local] += squares[local + half];
      }
    }
  }
  workgroupBarrier();
  if (!STORES) {
    if (local == 0u) {
      put_found(at, largest[0]);
    }
    return;
  }
  // The exponent of the largest element. Rows of zeros, of subnormal numbers, with infinities or NaN are unchanged.
  let field = i32(largest[0] >> 23u);
  let up = select(clamp(14 - (field - 127), -100, 100), 0, field == 0 || field == 255);
  let factor = power_of_two(up);
  if (local == 0u && begin == 0u) {
    var scale = p.scale;
    if (NORMED) {
      scale *= inverseSqrt(squares[0] / f32(p.k) + p.eps);
    }
    scales[row] = power_of_two(-up) * scale;
  }
  for (var i = begin + local * 8u; i < end; i += WG * 8u) {
    let eight = weighted(lhs_eight(src_word(first + i)), i);
    store_eight((row * p.k + i) / 8u, eight[0] * factor, eight[1] * factor);
  }
}
