// Runs kafkajs against a Headrace broker: node test.js HOST:PORT
// It speaks old versions (Fetch 11, Metadata 6, Produce 7), which newer clients do not reach.
const { Kafka, CompressionTypes, logLevel, ConfigResourceTypes } = require('kafkajs')
const assert = require('assert')

const kafka = new Kafka({ clientId: 'check', brokers: [process.argv[2]], logLevel: logLevel.NOTHING })

async function main () {
  const admin = kafka.admin()
  await admin.connect()
  assert(await admin.createTopics({ topics: [{ topic: 'js', numPartitions: 3, configEntries: [{ name: 'retention.ms', value: '86400000' }] }] }))
  assert.deepStrictEqual((await admin.listTopics()).filter(t => t === 'js'), ['js'])
  const meta = await admin.fetchTopicMetadata({ topics: ['js'] })
  assert.strictEqual(meta.topics[0].partitions.length, 3)
  const cluster = await admin.describeCluster()
  assert.strictEqual(cluster.brokers.length, 1)
  const configs = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: 'js' }] })
  assert.strictEqual(configs.resources[0].configEntries.find(e => e.configName === 'retention.ms').configValue, '86400000')

  for (const idempotent of [false, true]) {
    const producer = kafka.producer({ idempotent })
    await producer.connect()
    for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
      await producer.send({
        topic: 'js', compression,
        messages: Array.from({ length: 100 }, (_, i) => ({ key: `k${i}`, value: `v${i}`, headers: { h: 'x' } }))
      })
    }
    await producer.disconnect()
  }
  assert.strictEqual((await admin.fetchTopicOffsets('js')).reduce((n, o) => n + Number(o.high), 0), 400)

  // Two consumers of a group share; everything arrives, and the lag goes to 0.
  const got = []
  const consumers = [1, 2].map(() => kafka.consumer({ groupId: 'js-group', sessionTimeout: 10000, heartbeatInterval: 300 }))
  for (const c of consumers) {
    await c.connect()
    await c.subscribe({ topic: 'js', fromBeginning: true })
    await c.run({
      autoCommitThreshold: 1,
      eachMessage: async ({ partition, message }) => {
        assert.strictEqual(message.headers.h.toString(), 'x')
        got.push(`${partition}/${message.offset}`)
      }
    })
  }
  const until = async (what, ok) => {
    const end = Date.now() + 30000
    while (!(await ok())) {
      if (Date.now() > end) throw new Error(`it did not happen: ${what}`)
      await new Promise(resolve => setTimeout(resolve, 50))
    }
  }
  await until('everything was delivered', () => new Set(got).size === 400)
  await until('two members', async () => (await admin.describeGroups(['js-group'])).groups[0].members.length === 2)
  for (const c of consumers) await c.disconnect()
  const offsets = await admin.fetchOffsets({ groupId: 'js-group', topics: ['js'] })
  assert.strictEqual(offsets[0].partitions.reduce((n, p) => n + Number(p.offset), 0), 400)
  assert((await admin.listGroups()).groups.some(g => g.groupId === 'js-group'))
  await admin.deleteGroups(['js-group'])
  await admin.deleteTopics({ topics: ['js'] })
  await admin.disconnect()
  console.log('kafkajs: ok')
}

main().catch(err => { console.error(err); process.exit(1) })
