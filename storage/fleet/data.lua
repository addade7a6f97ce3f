#!lua name=dlbf_data

-- The data servers' half of the protocol in docs/fleet-protocol.md: what must happen in one step.
--
-- FCALL dlbf_data_<function> 2 KEY FENCE argument...
--
-- FENCE is a string "epoch@identity" in the key's slot: puts of that epoch are let in, if this is still the server on which
-- it was raised.  tests/support/fleet_servers.py is the same in Python; a test compares the two.

local run_id  -- of this process; no other has it

local function identity_of()
  run_id = run_id or string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  -- A server that was a replica in between has another one, and may have lost what it had answered.
  return run_id .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
end

local function set(key, value, px, ...)
  if px == '0' then return redis.call('SET', key, value, ...) end
  return redis.call('SET', key, value, 'PX', px, ...)
end

-- value epoch px -> stored existed identity fence
redis.register_function('dlbf_data_put', function(keys, args)
  local identity = identity_of()
  local fence = redis.call('GET', keys[2]) or ''
  if fence ~= args[2] .. '@' .. identity then return { 0, 0, identity, fence } end
  local existed = redis.call('EXISTS', keys[1])
  set(keys[1], args[1], args[3])
  return { 1, existed, identity, fence }
end)

-- value px identity... -> existed identity
redis.register_function('dlbf_data_replace', function(keys, args)
  local identity = identity_of()
  for i = 3, #args do
    if args[i] == identity then
      return { set(keys[1], args[1], args[2], 'XX') and 1 or 0, identity }
    end
  end
  return { 0, identity }
end)

-- -> deleted identity
redis.register_function('dlbf_data_delete', function(keys)
  return { redis.call('DEL', keys[1]), identity_of() }
end)

-- epoch identity -> raised fence
redis.register_function('dlbf_data_raise_fence', function(keys, args)
  local stamp, identity = args[1], identity_of()
  local fence = redis.call('GET', keys[2]) or ''
  local epoch = string.match(fence, '^(.*)@') or ''
  local is_older = tonumber(string.match(fence, '^%d+') or 0) < tonumber(string.match(stamp, '^%d+'))
  if args[2] ~= identity or not (is_older or epoch == stamp) then return { 0, fence } end
  fence = stamp .. '@' .. identity
  redis.call('SET', keys[2], fence)
  return { 1, fence }
end)

-- -> identity: no command of the protocol, but what a driver asks every server for
redis.register_function('dlbf_data_identity', function() return identity_of() end)
