-- needs: server
-- gives: decimals_of
-- Eight bytes as a signed number in decimals. Lua's numbers are too small for it: computed in three limbs of seven digits.
function decimals_of(key)
  local words, is_negative = {unpack_struct('>I2I2I2I2', key)}, string.byte(key) >= 128
  if is_negative then
    local carry = 1
    for i = 4, 1, -1 do
      words[i] = 65535 - words[i] + carry
      carry = words[i] == 65536 and 1 or 0
      words[i] = words[i] % 65536
    end
  end
  local low, middle, high = 0, 0, 0
  for i = 1, 4 do
    low = low * 65536 + words[i]
    middle = middle * 65536 + math.floor(low / 10000000)
    high = high * 65536 + math.floor(middle / 10000000)
    low, middle = low % 10000000, middle % 10000000
  end
  local text = string.gsub(format('%.0f%07.0f%07.0f', high, middle, low), '^0+(%d)', '%1')
  return is_negative and '-' .. text or text
end
