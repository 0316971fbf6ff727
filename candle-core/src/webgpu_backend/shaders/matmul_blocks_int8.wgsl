// lhs in 8 bits: each run has a scale, and its products with codes are sums of integers, four per instruction.

alias LhsEight = vec2<u32>;
alias RhsEight = vec2<u32>;
alias Number = i32;

struct Staged {
  eight: LhsEight,
  run: vec2<f32>,
}

fn dot_eight(lhs: LhsEight, rhs: RhsEight, sum: i32) -> i32 {
  return sum + dot4I8Packed(lhs.x, rhs.x) + dot4I8Packed(lhs.y, rhs.y);
}

fn packed(numbers: vec4<u32>) -> u32 {
  let bytes = numbers & vec4<u32>(0xffu);
  return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}

fn staged(eight: array<vec4<f32>, 2>) -> Staged {
  // The greatest magnitude, by its bits: those of NaN exceed any number's, so the run becomes NaN.
  let bits = max(bitcast<vec4<u32>>(eight[0]) & vec4<u32>(0x7fffffffu), bitcast<vec4<u32>>(eight[1]) & vec4<u32>(0x7fffffffu));
  var most = max(max(bits.x, bits.y), max(bits.z, bits.w));
  for (var lanes = 1u; lanes < RUN_EIGHTS; lanes *= 2u) {
    most = max(most, subgroupShuffleXor(most, lanes));
  }
  let greatest = bitcast<f32>(most);
  // A smaller magnitude has no reciprocal; it counts as zero.
  let factor = select(0.0, 127.0 / greatest, greatest > 0x1p-100f);
  // Adding 1.5 * 2^23 makes the last bits of a float those of the nearest integer.
  let shift = vec4<f32>(12582912.0);
  let low = bitcast<vec4<u32>>(fma(eight[0], vec4<f32>(factor), shift));
  let high = bitcast<vec4<u32>>(fma(eight[1], vec4<f32>(factor), shift));
  // In the order of the codes of rhs_eight().
  var codes = vec2<u32>(packed(low), packed(high));
  if (NIBBLES) {
    codes = vec2<u32>(packed(vec4<u32>(low.xz, high.xz)), packed(vec4<u32>(low.yw, high.yw)));
  }
  var sum = dot4I8Packed(codes.x, 0x01010101u) + dot4I8Packed(codes.y, 0x01010101u);
  for (var lanes = 1u; lanes < RUN_EIGHTS; lanes *= 2u) {
    sum += subgroupShuffleXor(sum, lanes);
  }
  let worth = greatest / 127.0;
  return Staged(codes, vec2<f32>(worth, worth * f32(sum)));
}
